"""What is in the fingerprint of a job's config and of its overrides, and what is not."""

from __future__ import annotations

import enum
import json
import pathlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lllaunch.config.schema import KEYS, UNPLANNED
from lllaunch.sweep.fingerprint import (
    CONFIG_LIMIT,
    NEUTRAL,
    job_config,
    job_key,
    overrides_key,
    worth_keeping,
)

# of the keys that there are: those whose change makes another job
IN = {
    *("entrypoint", "args", "nproc", "nnodes", "role", "start_method", "preload", "cwd"),
    *("env", "env_per_rank", "virtual_local_rank"),
}

keys = st.text("ab3.", max_size=3) | st.integers(0, 3) | st.booleans() | st.none()
leaves = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text('13.ae-"nul', max_size=4)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def key_of(launch: Any = None, places: Any = (), **config: Any) -> str:
    return job_key(job_config(launch or {}, config, places))


def typed(value: Any) -> Any:
    """A value that is equal to another one only if type and value are the same."""
    if isinstance(value, dict):
        return ("dict", frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(map(typed, value)))
    return (type(value).__name__, repr(value))


def test_every_key_of_the_launch_node_is_decided() -> None:
    assert set(KEYS) - NEUTRAL - UNPLANNED == IN


@pytest.mark.parametrize("key", sorted(NEUTRAL))
def test_what_does_not_change_the_outcome_is_out(key: str) -> None:
    assert (
        key_of({"nproc": 2, key: "a"})
        == key_of({"nproc": 2, key: {"b": 1}})
        == key_of({"nproc": 2})
    )


@pytest.mark.parametrize("key", sorted(IN | {"nnodes", "unheard_of"}))
def test_what_may_change_the_outcome_is_in(key: str) -> None:
    assert len({key_of({key: "a"}), key_of({key: "b"}), key_of()}) == 3


def test_the_users_own_keys_are_in_and_hydras_are_not() -> None:
    assert key_of(params={"lr": 0.1}) != key_of(params={"lr": 0.2})
    assert key_of(watchdog=1) != key_of(watchdog=2), "neutral in the launch node only"
    assert key_of(hydra={"a": 1}, lr=1) == key_of(hydra={"a": 2}, lr=1) == key_of(lr=1)
    assert job_config({"nproc": 1}, {"launch": {"nproc": 2}}) == {"launch": {"nproc": 1}}


@given(values, values)
@example({3: 0}, {"3": 0})
@example({"3": 0}, {'"3"': 0})
@example({None: 0}, {"null": 0})
@example(True, 1)
@example({"a": [1]}, {"a": {"0": 1}})
@example([1.0], [1])
@example({"b": 1, "a": 2}, {"a": 2, "b": 1})
def test_equal_data_and_only_that_has_equal_fingerprints(one: Any, other: Any) -> None:
    assert (key_of(x=one) == key_of(x=other)) == (typed(one) == typed(other))


@given(st.dictionaries(keys, values, max_size=4))
def test_the_order_of_keys_does_not_count_and_all_is_json(config: dict[Any, Any]) -> None:
    turned = dict(reversed(config.items()))
    assert key_of(x=config) == key_of(x=turned)
    canonical = job_config({}, {"x": config})
    text = json.dumps(canonical, allow_nan=False)
    assert job_key(json.loads(text)) == job_key(canonical), "as the journal keeps it"


def test_floats_are_the_same_however_they_are_written() -> None:
    assert key_of(lr=0.001) == key_of(lr=1e-3) == key_of(lr=float("0.0010"))
    assert key_of(lr=1.0) != key_of(lr=1)
    assert key_of(lr=float("nan")) == key_of(lr=float("nan")) != key_of(lr="nan")


def test_rarer_plain_data_has_a_form() -> None:
    class Color(enum.Enum):
        RED = 1

    class Level(enum.IntEnum):
        LOW = 1

    config = {"a": Color.RED, "b": b"\xff", "c": pathlib.Path("/x/y"), "d": (1, 2), "e": Level.LOW}
    assert job_config({}, {**config, b"k": 1, Color.RED: 2}, [("/x", "<x>")]) == {
        "a": "RED",
        "b": {"$bytes": "ff"},
        "c": "<x>/y",
        "d": [1, 2],
        "e": "LOW",
        "$bytes:6b": 1,
        "RED": 2,
        "launch": {},
    }


def test_what_is_no_plain_data_is_named() -> None:
    with pytest.raises(TypeError, match=r"^params\.net\[1\]: a object is not plain data"):
        key_of(params={"net": [1, object()]})
    with pytest.raises(TypeError, match=r"^params: a tuple is no key"):
        key_of(params={(1, 2): 3})


def test_directories_that_do_not_matter_are_replaced() -> None:
    def at(cwd: str, out: str) -> str:
        launch = {"cwd": out, "args": [f"--data={cwd}/data", f"{out}/x"], "env": {"P": f"{cwd}:/b"}}
        places = [(cwd, "<cwd>"), (out + "/", "<output_dir>")]
        return key_of(launch, places, file=f"{cwd}/a.txt")

    assert at("/home/u", "/home/u/multirun/1/0") == at("/mnt/p q", "/tmp/é+/0")


@pytest.mark.parametrize("text", ["/home/user", "/x/home/u", "/home/u-2", "/home/u.bak", "home/u"])
def test_only_whole_directories_are_replaced(text: str) -> None:
    places = [("/home/u", "<cwd>"), ("/", "<root>"), ("", "<none>")]
    assert job_config({}, {"a": text}, places)["a"] == text


def test_secrets_given_redacted_stay_so() -> None:
    redacted = {"env": {"TOKEN": "${oc.env:TOKEN}"}}
    assert job_config(redacted, {})["launch"] == redacted


def test_a_config_that_is_too_long_is_not_kept() -> None:
    assert worth_keeping(job_config({}, {"a": "x" * 1000}))
    assert not worth_keeping(job_config({}, {"a": "x" * CONFIG_LIMIT}))


@given(st.permutations(["+exp=a", "lr=1", "++b.c=2", "~d", "launch.nproc=2", "db@x=y"]))
def test_the_order_of_overrides_does_not_count(texts: list[str]) -> None:
    assert overrides_key(texts) == overrides_key(sorted(texts))


def test_overrides_are_not_run_together() -> None:
    assert overrides_key(["a=1", "b=2"]) != overrides_key(["a=1b=2"])
    assert overrides_key([]) != overrides_key([""])
    assert overrides_key(["a=1"]) != overrides_key(["+a=1"])
    assert overrides_key([" a=1 "]) == overrides_key(["a=1"])


@pytest.mark.parametrize(
    ("one", "other"),
    [("a=1", "a=2"), ("a=1", "++a=2"), ("a.b=1", "a={b: 2}"), ("~a", "+a=1"), ("db=x", "db/y=z")],
)
def test_the_order_of_overrides_of_one_key_counts(one: str, other: str) -> None:
    assert overrides_key([one, other]) != overrides_key([other, one])
    assert overrides_key(["z=1", one, other]) == overrides_key([one, "z=1", other])
    assert overrides_key(["0=1", one, other]) == overrides_key([one, other, "0=1"])


def test_values_are_no_keys() -> None:
    assert overrides_key(["a=x.b=1", "a.b=2"]) != overrides_key(["a.b=2", "a=x.b=1"])
    assert overrides_key(["ab=1", "a=2"]) == overrides_key(["a=2", "ab=1"])


related = st.lists(st.sampled_from(["a=1", "a=2", "a.b=1", "a.c=1", "b=1", "b.a=1"]), max_size=6)


@given(related, st.data())
def test_swapping_neighbours_that_have_nothing_in_common_changes_nothing(texts, data) -> None:
    texts = [*texts, "m=1", "n=1"]
    index = data.draw(st.integers(0, len(texts) - 2))
    one, other = (text.partition("=")[0].split(".") for text in texts[index : index + 2])
    swapped = [*texts[:index], texts[index + 1], texts[index], *texts[index + 2 :]]
    shorter = min(len(one), len(other))
    same = one[:shorter] != other[:shorter] or texts[index] == texts[index + 1]
    assert (overrides_key(texts) == overrides_key(swapped)) == same


def test_overrides_that_do_not_change_the_outcome_can_be_left_out() -> None:
    some = ["lr=1", "launch.watchdog.stall=5m", "+launch.tee=all", "launch/watchdog=strict"]
    assert overrides_key(some, neutral=False) == overrides_key(["lr=1"])
    elsewhere = ["lr=1", "cluster.detach=true"]
    assert overrides_key(elsewhere, neutral=False, clusters=True) == overrides_key(["lr=1"])
    assert overrides_key(some) != overrides_key(["lr=1"])
    for kept in ("launch.nproc=2", "launch={tee: all}", "tee=all", "launch.teeth=1"):
        assert overrides_key(["lr=1", kept], neutral=False) != overrides_key(["lr=1"])
