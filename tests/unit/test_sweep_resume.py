"""Which jobs of a resumed sweep run, under which numbers, and which change is refused."""

from __future__ import annotations

import enum
import json
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from lllaunch.documents import differences
from lllaunch.errors import ConfigError
from lllaunch.spec import PLANNED
from lllaunch.sweep.fingerprint import (
    NEUTRAL,
    job_config,
    job_key,
    overrides_key,
)
from lllaunch.sweep.history import JobHistory
from lllaunch.sweep.journal import Result
from lllaunch.sweep.session import match_jobs, plan_resume

GOOD = Result("succeeded", 0)
BAD = Result("failed", 3)


def old(
    number: int, *overrides: str, result: Result | None = None, config: Any = None, **known: Any
) -> JobHistory:
    key = job_key(job_config({}, config or {}))
    became = structs.asdict(result or Result("started"))
    return JobHistory(number, overrides, str(number), key, **became, **known)


Composed = Generator[Mapping[str, Any], None, None]
Wanted = tuple[tuple[str, ...], Mapping[str, Any]]


def new(*overrides: str, config: Any = None) -> Wanted:
    return overrides, job_config({}, config or {})


def of(kept: dict[int, Any]) -> Callable[[Collection[int]], dict[int, Any]]:
    """The configs of some jobs, as the journal has kept them."""
    return lambda numbers: {number: kept[number] for number in numbers}


def planned(before: list[JobHistory], now: list[Wanted], **more: Any) -> list[JobHistory]:
    """Plans a resume; only jobs that have finished are composed."""

    def compose(finished: Sequence[tuple[int, JobHistory]]) -> Composed:
        for index, job in finished:
            assert job.finished
            yield now[index][1]

    return plan_resume(before, [overrides for overrides, _ in now], compose, **more)


@pytest.mark.parametrize("result", [None, GOOD, BAD, Result("signalled", 143)])
def test_only_a_result_of_success_makes_a_job_finished(result: Result | None) -> None:
    job = old(0, "a=1", result=result)
    # what has not finished may have another config by now
    assert planned([job], [new("a=1", config=None if result is GOOD else {"a": 2})]) == [job]
    assert job.finished == (result is GOOD)


def test_overrides_that_do_not_change_the_outcome_need_not_be_the_same() -> None:
    before = [old(0, "a=1", "launch.tee=all", result=GOOD), old(1, "a=1", result=GOOD)]
    matches = match_jobs(before, [("a=1",), ("a=1", "launch.grace_period=5s"), ("a=2",)])
    assert [match.job for match in matches] == [1, 0, 2]
    # a sweep over such a key keeps them apart
    swept = [old(i, "a=1", f"launch.watchdog.stall={i}m") for i in range(1, 4)]
    wanted = [("launch.watchdog.stall=3m", "a=1"), ("a=1", "launch.watchdog.stall=2m")]
    assert [match.job for match in match_jobs(swept, wanted)] == [3, 2]


jobs = st.lists(st.sampled_from("abc"), max_size=3).map(
    lambda keys: tuple(f"{key}={len(keys)}" for key in keys)
)


@st.composite
def sweeps(draw):
    overrides = draw(st.lists(jobs, max_size=8))
    numbers = draw(st.lists(st.integers(0, 20), unique=True, min_size=len(overrides), max_size=20))
    results = st.sampled_from([None, GOOD, BAD])
    pairs = zip(numbers, overrides, strict=False)
    return [old(number, *texts, result=draw(results)) for number, texts in pairs]


@given(sweeps(), st.lists(jobs, max_size=8), st.integers(0, 9))
def test_each_job_is_matched_once_and_no_number_is_used_twice(before, wanted, first) -> None:
    plan = planned(before, [new(*texts) for texts in wanted], first=first)
    assert len(plan) == len(wanted)
    numbers = [job.job for job in plan]
    assert len(set(numbers)) == len(numbers)
    known = {job.job for job in before}
    for index, (match, texts) in enumerate(zip(plan, wanted, strict=True)):
        if match.job not in known:
            place = first + index
            free = place not in known
            assert match.job == place if free else match.job > max(known, default=-1)
        else:
            assert match in before
            assert overrides_key(match.overrides) == overrides_key(texts)
    # as many as can be are matched, and those that have finished first
    there = Counter(overrides_key(job.overrides) for job in before)
    done = Counter(overrides_key(job.overrides) for job in before if job.finished)
    count = Counter(map(overrides_key, wanted))
    kept = [match for match in plan if match.job in known]
    assert len(kept) == sum(min(count[key], there[key]) for key in count)
    skipped = [match for match in kept if match.finished]
    assert len(skipped) == sum(min(count[key], done[key]) for key in count)


def test_a_change_of_a_finished_jobs_config_is_refused_with_the_difference() -> None:
    first = {"params": {"epochs": 3, "net": ["a", "b"], "gone": None}}
    then = {"params": {"epochs": 5, "net": ["a", "c"], "more": {"x": "y"}}}
    before = [old(0, "lr=1", result=GOOD, config=first)]
    with pytest.raises(ConfigError) as caught:
        planned(before, [new("lr=1", config=then)], configs_of=of({0: job_config({}, first)}))
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        "hydra.launcher.resume: job 0 (lr=1) has finished, and its config has changed since; "
        "put it back, begin another sweep, or delete its result.json to run it again [changed]:\n"
        "    params.epochs: 3 -> 5\n"
        '    params.net[1]: "b" -> "c"\n'
        "    params.gone: was null, is gone\n"
        '    params.more: new, {"x": "y"}'
    )


def test_not_all_jobs_are_composed_to_say_that_all_have_changed() -> None:
    before = [old(i, f"lr={i}", result=GOOD, config={"a": 1}) for i in range(200)]
    now = [new(f"lr={i}", config={"a": 2 if i > 9 else 1}) for i in range(200)]
    composed = []

    def compose(finished: Sequence[tuple[int, JobHistory]]) -> Composed:
        for index, _ in finished:
            composed.append(index)
            yield now[index][1]

    with pytest.raises(ConfigError) as caught:
        plan_resume(before, [overrides for overrides, _ in now], compose)
    (problem,) = caught.value.problems
    assert problem.value == "jobs 10-59"
    assert problem.hint.endswith("(140 more of those that have finished were not compared)")
    assert composed == [*range(60)]


def test_a_change_is_refused_also_where_the_old_config_was_not_kept() -> None:
    before = [old(0, result=GOOD, config={"a": 1})]
    with pytest.raises(ConfigError, match=r"job 0 has finished.*\n.* is not known") as caught:
        planned(before, [new(config={"a": 2})])
    assert len(caught.value.problems) == 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("ab"), plain), st.dictionaries(st.text("ab"), plain))
def test_there_is_a_difference_exactly_where_the_fingerprints_differ(one, other) -> None:
    a, b = job_config({}, one), job_config({}, other)
    assert bool(differences(a, b, ordered=False)) == (job_key(a) != job_key(b))


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
    assert set(PLANNED) - NEUTRAL == IN


@pytest.mark.parametrize("key", sorted(NEUTRAL | IN | {"unheard_of"}))
def test_what_may_change_the_outcome_is_in(key: str) -> None:
    found = {key_of({key: "a"}), key_of({key: {"b": 1}}), key_of()}
    assert len(found) == (1 if key in NEUTRAL else 3)


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
@example(float("nan"), float("nan"))
@example(float("nan"), "nan")
def test_equal_data_and_only_that_has_equal_fingerprints(one: Any, other: Any) -> None:
    assert (key_of(x=one) == key_of(x=other)) == (typed(one) == typed(other))


@given(st.dictionaries(keys, values, max_size=4))
def test_the_order_of_keys_does_not_count_and_all_is_json(config: dict[Any, Any]) -> None:
    turned = dict(reversed(config.items()))
    assert key_of(x=config) == key_of(x=turned)
    canonical = job_config({}, {"x": config})
    text = json.dumps(canonical, allow_nan=False)
    assert job_key(json.loads(text)) == job_key(canonical), "as the journal keeps it"


def test_rarer_plain_data_has_a_form() -> None:
    class Color(enum.Enum):
        RED = 1

    class Level(enum.IntEnum):
        LOW = 1

    config = {"a": Color.RED, "b": b"\xff", "c": pathlib.Path("/x/y"), "d": (1, 2), "e": Level.LOW}
    found = job_config({}, {**config, b"k": 1, Color.RED: 2}, [("/x", "<x>")])
    plain = {"a": "RED", "b": {"$bytes": "ff"}, "c": "<x>/y", "d": [1, 2], "e": "LOW"}
    assert found == {**plain, "$bytes:6b": 1, "RED": 2, "launch": {}}


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


@pytest.mark.parametrize(
    ("one", "other"),
    [("a=1", "a=2"), ("a=1", "++a=2"), ("a.b=1", "a={b: 2}"), ("~a", "+a=1"), ("db=x", "db/y=z")],
)
def test_the_order_of_overrides_of_one_key_counts(one: str, other: str) -> None:
    assert overrides_key([one, other]) != overrides_key([other, one])
    assert overrides_key(["z=1", one, other]) == overrides_key([one, "z=1", other])
    assert overrides_key(["0=1", one, other]) == overrides_key([one, other, "0=1"])


def test_overrides_that_do_not_change_the_outcome_can_be_left_out() -> None:
    some = ["lr=1", "launch.watchdog.stall=5m", "+launch.tee=all", "launch/watchdog=strict"]
    assert overrides_key(some, neutral=False) == overrides_key(["lr=1"])
    elsewhere = ["lr=1", "cluster.detach=true"]
    assert overrides_key(elsewhere, neutral=False, clusters=True) == overrides_key(["lr=1"])
    assert overrides_key(some) != overrides_key(["lr=1"])
    for kept in ("launch.nproc=2", "launch={tee: all}", "tee=all", "launch.teeth=1"):
        assert overrides_key(["lr=1", kept], neutral=False) != overrides_key(["lr=1"])
