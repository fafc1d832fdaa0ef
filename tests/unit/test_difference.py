from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.documents import ABSENT, Change, Plain, differences, text_lines
from lllaunch.errors import Diagnostic
from lllaunch.review.paths import PlanRefused

keys = st.sampled_from(["a", "b", "A.B", "1", "é"]) | st.integers(0, 3)
leaves = (
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.5, 1.0]) | st.text("ab\n")
)
plans = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def applied(plan: Any, changes: tuple[Change, ...]) -> Any:
    """The plan with the changes made."""
    holder = {"plan": copy.deepcopy(plan)}
    removed_last_first = sorted(changes, key=lambda change: change.new is ABSENT)
    kept = [change for change in removed_last_first if change.new is not ABSENT]
    for change in [*kept, *reversed(removed_last_first[len(kept) :])]:
        node: Any = holder
        *path, last = ("plan", *change.path)
        for part in path:
            node = node[part]
        if change.new is ABSENT:
            assert node[last] == change.old
            del node[last]
        elif isinstance(node, list) and change.old is ABSENT:
            assert len(node) == last
            node.append(change.new)
        else:
            node[last] = change.new
    return holder["plan"]


def typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {(type(key), key): typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), value


@given(plans, plans)
def test_applying_the_changes_gives_the_other_plan(old: Any, new: Any) -> None:
    changes = differences(old, new)
    assert typed(applied(old, changes)) == typed(new)
    assert bool(changes) == (repr(old) != repr(new))
    assert len(text_lines(changes)) == len(changes)
    json.dumps(Plain()(changes), allow_nan=False)


OLD = {
    "launch": {
        "entrypoint": "train.py",
        "args": ["--epochs", "3", "--lr", "0.1"],
        "nproc": 2,
        "env": {"A": "1", "B.C": "x"},
        "env_per_rank": {0: {"X": "a"}, "1-2": {"X": "b"}},
        "preload": ["torch"],
        "tee": "0:all",
        "signals": ["SIGTERM"],
    }
}
NEW = {
    "launch": {
        "entrypoint": "train.py",
        "args": ["--epochs", "3", "--lr", "0.2"],
        "nproc": 4,
        "env": {"B.C": "y\x1b[2K\u202eb\u2028", "D": "2"},
        "env_per_rank": {0: {"X": "c"}, "1-2": {"X": "b"}},
        "preload": ["torch", "numpy"],
        "tee": None,
        "signals": ["SIGINT", "SIGTERM"],
        "role": "default",
    }
}


def test_a_difference_reads_like_this() -> None:
    assert text_lines(differences(OLD, NEW)) == [
        'launch.args[3]: "0.1" -> "0.2"',
        "launch.nproc: 2 -> 4",
        'launch.env.A: was "1", is gone',
        'launch.env["B.C"]: "x" -> "y\\u001b[2K\\u202eb\\u2028"',
        'launch.env.D: new, "2"',
        'launch.env_per_rank[0].X: "a" -> "c"',
        'launch.preload[1]: new, "numpy"',
        'launch.tee: "0:all" -> null',
        'launch.signals: ["SIGTERM"] -> ["SIGINT", "SIGTERM"]',
        'launch.role: new, "default"',
    ]
    assert text_lines(differences(OLD, NEW), 2)[2:] == ["... and 8 more"]


def test_a_difference_as_json() -> None:
    old, new = {"a": {3: math.nan}, "b": None}, {"a": {3: 1}, "c": {4: [math.inf]}}
    assert Plain()(differences(old, new)) == [
        {"key": "a[3]", "kind": "changed", "old": "nan", "new": 1},
        {"key": "b", "kind": "removed", "old": None},
        {"key": "c", "kind": "added", "new": {"4": ["inf"]}},
    ]


def test_long_texts_are_shown_where_they_begin_to_differ() -> None:
    old, new = "a" * 5000, "a" * 4000 + "b"
    (line,) = text_lines(differences({"k": old}, {"k": new}))
    assert line.startswith("k: ...aaa")
    assert "aab -> " not in line
    assert line.endswith('aab"')
    assert len(line) < 500


def test_a_refusal_says_all_and_is_picklable() -> None:
    problem = Diagnostic("not-allowed", "launch.preload", "'evil'", "is not in allow.preload")
    refused = PlanRefused("conf/locks/a.yaml", differences(OLD, NEW)[1:2], (problem,), "renew me")
    expected = (
        "the plan is not the reviewed one, conf/locks/a.yaml:\n"
        "  launch.nproc: 2 -> 4\n"
        "this may not run:\n"
        "  launch.preload: 'evil' is not in allow.preload [not-allowed]\n"
        "if this is what shall run, have the lock reviewed anew: renew me"
    )
    assert str(refused) == expected
    assert refused.exit_code == 5
    again = pickle.loads(pickle.dumps(refused))
    assert str(again) == expected
    added = differences({}, {"a": 1})
    assert pickle.loads(pickle.dumps(added))[0].kind == "added"
