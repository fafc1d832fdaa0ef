"""Which jobs of a resumed sweep run, under which numbers, and which change is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.difference import differences
from lllaunch.errors import ConfigError
from lllaunch.sweep.fingerprint import job_config, job_key, overrides_key
from lllaunch.sweep.history import JobHistory
from lllaunch.sweep.journal import Result
from lllaunch.sweep.resume import (
    NewJob,
    OldJob,
    ResumePlan,
    RunAgain,
    RunNew,
    Skip,
    match_jobs,
    plan_resume,
)

GOOD = Result("succeeded", 0)
BAD = Result("failed", 3)


def old(
    number: int, *overrides: str, result: Result | None = None, config: Any = None, **known: Any
) -> OldJob:
    key = job_key(job_config({}, config or {}))
    return OldJob(JobHistory(number, overrides, str(number), key, **known), result)


def new(*overrides: str, config: Any = None) -> NewJob:
    canonical = job_config({}, config or {})
    return NewJob(overrides, job_key(canonical), canonical)


def planned(before: list[OldJob], now: list[NewJob], **more: Any) -> ResumePlan:
    """Plans a resume; only jobs that have finished are composed."""

    def compose(finished: Sequence[tuple[int, OldJob]]) -> Generator[NewJob, None, None]:
        for index, job in finished:
            assert job.finished
            yield now[index]

    return plan_resume(before, [job.overrides for job in now], compose, **more)


def test_finished_ones_are_skipped_others_run_again_and_new_ones_get_new_numbers() -> None:
    before = [
        old(0, "lr=1", result=GOOD),
        old(1, "lr=2", result=BAD),
        old(2, "lr=3"),
        old(3, "lr=4", result=GOOD),
    ]
    plan = planned(before, [new("lr=3"), new("lr=9"), new("lr=1"), new("lr=2"), new("lr=8")])
    assert plan.jobs == (
        RunAgain(2, before[2]),
        RunNew(5),
        Skip(0, before[0]),
        RunAgain(1, before[1]),
        RunNew(4),
    )
    assert plan.left == (3,)


@pytest.mark.parametrize("state", ["composed", "started", "failed", "skipped", "succeeded"])
@pytest.mark.parametrize("result", [None, GOOD, BAD, Result("signalled", 143), Result("error", 1)])
def test_only_a_result_of_success_makes_a_job_finished(state: str, result: Result | None) -> None:
    journalled = GOOD if state == "succeeded" else None
    job = old(0, "a=1", result=result, state=state)
    job = job._replace(history=job.history._replace(result=journalled))
    (decision,) = planned([job], [new("a=1")]).jobs
    assert isinstance(decision, Skip if result is GOOD else RunAgain)
    assert job.journalled is (state == "succeeded")


def test_numbers_of_unknown_directories_are_left_alone() -> None:
    plan = planned([old(1, "a=1")], [new("a=2"), new("a=1"), new("a=3")], taken={0, 2, 3, 5})
    assert [job.number for job in plan.jobs] == [4, 1, 6]
    assert [job.number for job in planned([], [new(), new()]).jobs] == [0, 1]


def test_the_same_overrides_twice_are_two_jobs() -> None:
    before = [old(0, "a=1", result=GOOD), old(1, "a=1", result=BAD), old(2, "a=1", result=GOOD)]
    plan = planned(before, [new("a=1")] * 4)
    assert [(type(job), job.number) for job in plan.jobs] == [
        (Skip, 0),
        (RunAgain, 1),
        (Skip, 2),
        (RunNew, 3),
    ]
    fewer = planned(before, [new("a=1")] * 2)
    assert [(type(job), job.number) for job in fewer.jobs] == [(Skip, 0), (Skip, 2)]
    assert fewer.left == (1,)


def test_overrides_that_do_not_change_the_outcome_need_not_be_the_same() -> None:
    before = [old(0, "a=1", "launch.tee=all", result=GOOD), old(1, "a=1", result=GOOD)]
    matches = match_jobs(before, [("a=1",), ("a=1", "launch.grace_period=5s"), ("a=2",)])
    assert [match.number for match in matches] == [1, 0, 2]
    # a sweep over such a key keeps them apart
    swept = [old(i, "a=1", f"launch.watchdog.stall={i}m") for i in range(1, 4)]
    wanted = [("launch.watchdog.stall=3m", "a=1"), ("a=1", "launch.watchdog.stall=2m")]
    assert [match.number for match in match_jobs(swept, wanted)] == [3, 2]


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


@given(sweeps(), st.lists(jobs, max_size=8), st.frozensets(st.integers(0, 30)), st.integers(0, 9))
def test_each_job_is_matched_once_and_no_number_is_used_twice(before, wanted, taken, first) -> None:
    plan = planned(before, [new(*texts) for texts in wanted], taken=taken, first=first)
    assert len(plan.jobs) == len(wanted)
    numbers = [job.number for job in plan.jobs]
    assert len(set(numbers)) == len(numbers)
    known = {job.number for job in before}
    for index, (decision, texts) in enumerate(zip(plan.jobs, wanted, strict=True)):
        if isinstance(decision, RunNew):
            assert decision.number not in known | taken
            place = first + index
            free = place not in known | taken
            assert decision.number == place if free else decision.number > max(known, default=-1)
        else:
            assert decision.old in before
            assert decision.number == decision.old.number
            assert overrides_key(decision.old.history.overrides) == overrides_key(texts)
            assert isinstance(decision, Skip) == decision.old.finished
    assert set(plan.left) == known - set(numbers)
    # as many as can be are matched, and those that have finished first
    there = Counter(overrides_key(job.history.overrides) for job in before)
    done = Counter(overrides_key(job.history.overrides) for job in before if job.finished)
    count = Counter(map(overrides_key, wanted))
    kept = [job for job in plan.jobs if not isinstance(job, RunNew)]
    assert len(kept) == sum(min(count[key], there[key]) for key in count)
    skipped = [job for job in kept if isinstance(job, Skip)]
    assert len(skipped) == sum(min(count[key], done[key]) for key in count)


@given(sweeps(), st.frozensets(st.integers(0, 30)))
def test_the_same_sweep_again_keeps_every_number(before, taken) -> None:
    before.sort(key=lambda job: job.number)
    plan = planned(before, [new(*job.history.overrides) for job in before], taken=taken)
    assert [job.number for job in plan.jobs] == [job.number for job in before]
    assert plan.left == ()


def test_jobs_that_were_never_started_keep_the_numbers_of_their_places() -> None:
    # of six jobs, those were started that fitted first
    before = [old(i, f"lr={i}", result=GOOD if i else None) for i in (0, 1, 4)]
    plan = planned(before, [new(f"lr={i}") for i in range(6)])
    assert [job.number for job in plan.jobs] == [0, 1, 2, 3, 4, 5]
    assert [type(job) for job in plan.jobs] == [RunAgain, Skip, RunNew, RunNew, Skip, RunNew]


def test_a_change_of_a_finished_jobs_config_is_refused_with_the_difference() -> None:
    first = {"params": {"epochs": 3, "net": ["a", "b"], "gone": None}}
    then = {"params": {"epochs": 5, "net": ["a", "c"], "more": {"x": "y"}}}
    before = [old(0, "lr=1", result=GOOD, config=first)]
    with pytest.raises(ConfigError) as caught:
        planned(
            before,
            [new("lr=1", config=then)],
            config_of={0: job_config({}, first)}.get,
        )
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        "hydra.launcher.resume: job 0 (lr=1) has finished, and its config has changed since; "
        "put it back, begin another sweep, or delete its result.json to run it again [changed]:\n"
        "    params.epochs: 3 -> 5\n"
        '    params.net[1]: "b" -> "c"\n'
        "    params.gone: was null, is gone\n"
        '    params.more: new, {"x": "y"}'
    )


def test_a_change_of_another_jobs_config_is_none_of_its_business() -> None:
    before = [old(0, "lr=1", result=BAD, config={"a": 1}), old(1, "lr=2", config={"a": 1})]
    plan = planned(before, [new("lr=1", config={"a": 2}), new("lr=2", config={"a": 2})])
    assert [type(job) for job in plan.jobs] == [RunAgain, RunAgain]


def test_jobs_that_have_changed_alike_are_told_together() -> None:
    before = [old(i, f"lr={i}", result=GOOD, config={"a": 1, "lr": i}) for i in range(6)]
    now = [new(f"lr={i}", config={"a": 1 + (i != 3) + (i == 5), "lr": i}) for i in range(6)]
    kept = {i: job_config({}, {"a": 1, "lr": i}) for i in range(6)}
    with pytest.raises(ConfigError) as caught:
        planned(before, now[::-1], config_of=kept.get)
    many, one = map(str, caught.value.problems)
    assert "jobs 0-2, 4 have finished" in many
    assert many.endswith("\n    a: 1 -> 2")
    assert "job 5 (lr=5) has finished" in one


def test_not_all_jobs_are_composed_to_say_that_all_have_changed() -> None:
    before = [old(i, f"lr={i}", result=GOOD, config={"a": 1}) for i in range(200)]
    now = [new(f"lr={i}", config={"a": 2 if i > 9 else 1}) for i in range(200)]
    composed = []

    def compose(finished: Sequence[tuple[int, OldJob]]) -> Generator[NewJob, None, None]:
        for index, _ in finished:
            composed.append(index)
            yield now[index]

    with pytest.raises(ConfigError) as caught:
        plan_resume(before, [job.overrides for job in now], compose)
    (problem,) = caught.value.problems
    assert problem.value == "jobs 10-59"
    assert problem.hint.endswith("(140 more of those that have finished were not compared)")
    assert composed == [*range(60)]


def test_a_change_is_refused_also_where_the_old_config_was_not_kept() -> None:
    before = [old(0, result=GOOD, config={"a": 1})]
    with pytest.raises(ConfigError, match=r"job 0 has finished.*\n.* is not known") as caught:
        planned(before, [new(config={"a": 2})])
    assert len(caught.value.problems) == 1
    with pytest.raises(ConfigError, match="is not known"):
        planned(before, [NewJob(())])


def test_a_fingerprint_that_is_not_that_of_the_kept_config_is_no_change_of_it() -> None:
    kept = {0: job_config({}, {"a": 1}), 1: job_config({}, {"a": 1})}
    before = [old(i, f"lr={i}", result=GOOD, config={"a": 1}) for i in kept]
    before = [job._replace(history=job.history._replace(fingerprint="F" * 64)) for job in before]
    plan = planned(before[:1], [new("lr=0", config={"a": 1})], config_of=kept.get)
    assert plan.jobs == (Skip(0, before[0]),)
    with pytest.raises(ConfigError, match=r"job 1 .* has finished.*\n    a: 1 -> 2"):
        planned(before[1:], [new("lr=1", config={"a": 2})], config_of=kept.get)


def test_a_difference_is_short_and_the_order_of_keys_is_none() -> None:
    first = {"a": "x" * 500 + "old", **{f"k{i:02d}": i for i in range(30)}}
    then = {**{f"k{i:02d}": i + 1 for i in range(30)}, "a": "x" * 500 + "new"}
    with pytest.raises(ConfigError) as caught:
        planned(
            [old(0, result=GOOD, config=first)],
            [new(config=then)],
            config_of={0: job_config({}, first)}.get,
        )
    _, a, *more = str(caught.value).splitlines()
    assert "old" in a
    assert "new" in a
    assert len(a) < 150
    assert more[0].strip() == "k00: 0 -> 1"
    assert more[-1].strip() == "... and 23 more"
    assert len(more) == 8
    turned = dict(reversed(list(first.items())))
    planned(
        [old(0, result=GOOD, config=first)],
        [new(config=turned)],
        config_of={0: job_config({}, first)}.get,
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("ab"), plain), st.dictionaries(st.text("ab"), plain))
def test_there_is_a_difference_exactly_where_the_fingerprints_differ(one, other) -> None:
    a, b = job_config({}, one), job_config({}, other)
    assert bool(differences(a, b, ordered=False)) == (job_key(a) != job_key(b))


def test_a_job_of_a_journal_that_named_defaults_is_the_same() -> None:
    complete = job_config({"entrypoint": "env", "nproc": 1}, {"a": 1})
    essential = job_config({"entrypoint": "env"}, {"a": 1})
    known = NewJob((), job_key(essential), essential, former=job_key(complete))
    before = OldJob(JobHistory(0, (), "0", job_key(complete)), GOOD)
    planned([before], [known])
    with pytest.raises(ConfigError, match="has changed"):
        planned([before], [known._replace(former=None)])
