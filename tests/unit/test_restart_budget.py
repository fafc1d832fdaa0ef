"""How restarts are counted: in a window, anew with progress, and until trying again is no use."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lllaunch.events import (
    Exited,
    OrphansGone,
    StartFailed,
)
from lllaunch.spec import RestartPolicy
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.machine import (
    AttemptProgress,
    GroupEnd,
    Machine,
    NoProgress,
    RestartBudget,
    RestartHistory,
)

S = 1_000_000_000


def budget(max_restarts: int = 9, **policy: object) -> RestartBudget:
    return RestartBudget(max_restarts, 1, RestartPolicy(**policy))  # type: ignore[arg-type]


def fails(
    budget: RestartBudget,
    at: float = 0.0,
    step: float | None = None,
    *,
    saved: bool = False,
    reason: v.Reason = "failure",
) -> float | None:
    """An attempt fails at a moment, in seconds; how long it is waited for the next one."""
    budget.note(AttemptProgress(step, saved, int(at * S)))
    return budget.take(reason)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ((None, None), NoProgress(2, None, same=False)),
        ((1200.0, 1200.0, 1200.0), NoProgress(2, 1200.0, same=True)),
        ((1200.0, 1100.0, 1200.0), NoProgress(2, 1200.0, same=False)),
        ((1200.0, None, None), NoProgress(2, 1200.0, same=False)),
        ((None, 3.0, 3.0, 4.0, 4.0, 4.0), NoProgress(2, 4.0, same=True)),
    ],
)
def test_after_so_many_attempts_without_progress_it_is_over(
    steps: tuple[float | None, ...], told: NoProgress
) -> None:
    allowed = budget(max_without_progress=2)
    *before, last = [fails(allowed, at, step) for at, step in enumerate(steps)]
    assert before == [0.0] * (len(steps) - 1)
    assert last is None
    found = allowed.no_progress
    assert found is not None
    assert replace(found, same=found.same and found.step is not None) == told


def test_what_is_said_of_it() -> None:
    no_use = "trying again is no use"
    assert str(NoProgress(3, 1234567.5)) == (
        f"no progress in 3 attempts, none of which got further than step 1,234,567.5: {no_use}"
    )
    assert str(NoProgress(1, 7.0, same=True)) == (
        f"no progress in 1 attempt, which ended at step 7: {no_use}"
    )
    assert str(NoProgress(3)) == f"no progress in 3 attempts: {no_use}"


@pytest.mark.parametrize(
    ("most", "on"), [(0, {"failure"}), (9, {"hang"})], ids=["no restart left", "no such cause"]
)
def test_where_no_restart_would_have_come_its_own_cause_is_why(most: int, on: set[str]) -> None:
    allowed = budget(most, max_without_progress=1, on=frozenset(on))
    assert fails(allowed) is None
    assert allowed.no_progress is None


def test_a_preflight_that_fails_is_no_attempt_without_progress() -> None:
    allowed = budget(3, max_without_progress=1)
    assert fails(allowed, reason="preflight") == fails(allowed, reason="preflight") == 0.0
    assert fails(allowed) is None
    assert allowed.no_progress == NoProgress(1, None, same=True)


@pytest.mark.parametrize(("changed", "ran"), [(None, True), (False, False)])
def test_an_attempt_that_tells_nothing_of_progress_does_not_count(
    changed: bool | None, ran: bool
) -> None:
    allowed = budget(2, max_without_progress=1)
    for waits in (0.0, 0.0, None):
        allowed.note(AttemptProgress(5.0 if waits else None, changed, S, ran))
        assert allowed.take("failure") == waits
    assert allowed.no_progress is None
    assert allowed.history == RestartHistory((S, S), None, ())


def test_what_is_no_failure_of_the_attempt_does_not_count() -> None:
    allowed = budget(max_without_progress=2)
    assert fails(allowed, reason="spawner") == 0.0
    assert fails(allowed, reason="membership") == fails(allowed, reason="membership") == 0.0
    assert fails(allowed) == 0.0
    assert fails(allowed) is None


def test_a_batch_job_goes_on_counting_attempts_without_progress() -> None:
    policy = RestartPolicy(max_without_progress=3)
    former = RestartBudget(9, 1, policy)
    assert fails(former, 0, 100.0) == fails(former, 1, 100.0) == 0.0
    history = former.history
    assert history == RestartHistory((0, S), 100.0, (100.0,))
    later = RestartBudget(9, 1, policy, replace(history, times_ns=()))
    assert fails(later, 50, 100.0) == 0.0
    assert fails(later, 51, 99.0) is None
    assert later.no_progress == NoProgress(3, 100.0)


@dataclass
class Model:
    """The same told by going through all that has happened, each time anew."""

    most: int
    policy: RestartPolicy
    taken: list[float] = field(default_factory=list)
    steps: list[float | None] = field(default_factory=list)
    idle: int = 0
    in_vain: bool = False

    def fails(self, at: float, step: float | None, *, saved: bool) -> bool:
        known = [each for each in self.steps if each is not None]
        further = saved or (step is not None and (not known or step > max(known)))
        self.steps.append(step)
        if further and self.policy.reset_on:
            self.taken.clear()
        self.idle = 0 if further else self.idle + 1
        limit, window = self.policy.max_without_progress, self.policy.window
        within = [each for each in self.taken if window is None or at - each < window]
        if len(within) >= self.most:
            self.in_vain = False
            return False
        self.in_vain = limit is not None and self.idle >= limit
        if self.in_vain:
            return False
        self.taken = [*within, at]
        return True


ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 20), st.none() | st.integers(0, 5), st.booleans()), max_size=30
)
POLICIES = st.builds(
    RestartPolicy,
    delay=st.just(1.0),
    window=st.none() | st.integers(1, 40).map(float),
    reset_on=st.sampled_from([None, "progress"]),
    max_without_progress=st.none() | st.integers(1, 4),
)


@given(st.integers(0, 4), POLICIES, ATTEMPTS)
def test_any_course_of_attempts_counts_as_the_settings_say(
    most: int, policy: RestartPolicy, attempts: list[tuple[int, int | None, bool]]
) -> None:
    allowed, model = RestartBudget(most, 0, policy), Model(most, policy)
    now = 0
    for counted, (pause, step, saved) in enumerate(attempts, 1):
        now += pause
        waits = fails(allowed, now, step, saved=saved)
        assert (waits is not None) == model.fails(now, step, saved=saved)
        if waits is None:
            assert (allowed.no_progress is not None) == model.in_vain
            return
        assert allowed.restart == len(model.taken) <= most
        assert waits == policy.wait(len(model.taken))
        assert allowed.counted == counted


# The machine


def end_of(rank: int, exitcode: int = 1) -> Exited:
    return Exited(rank, 100 + rank, exitcode, 1)


def came(step: float | None = None, at: float = 0.0, *, saved: bool = False) -> AttemptProgress:
    return AttemptProgress(step, saved, int(at * S))


def running(policy: RestartPolicy, max_restarts: int = 9, **more: object) -> Machine:
    machine = Machine(max_restarts, policy=policy, **more)  # type: ignore[arg-type]
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset({0})))
    return machine


def failed(machine: Machine, progress: AttemptProgress) -> v.Actions:
    """An attempt fails, and what follows."""
    assert machine.handle(end_of(0)) == (v.CleanUp(),)
    assert machine.handle(progress) == ()
    actions = machine.handle(OrphansGone())
    if isinstance(actions[0], v.StartWorkers):
        machine.handle(v.GroupStarted(frozenset({0})))
    return actions


def test_what_the_attempts_came_to_is_told_with_each_start_and_the_end() -> None:
    machine = running(RestartPolicy(max_without_progress=2))
    (start,) = failed(machine, came(None, 1))
    assert isinstance(start, v.StartWorkers)
    assert start.history == RestartHistory((S,), None, (None,))
    (end,) = failed(machine, came(None, 2))
    assert isinstance(end, v.Finish)
    assert end.history == RestartHistory((S,), None, (None, None))


def test_the_progress_of_an_attempt_that_a_signal_ends_counts_for_the_next_batch_job() -> None:
    machine = running(RestartPolicy(max_without_progress=2))
    failed(machine, came(5.0))
    failed(machine, came(5.0))
    machine.handle(v.SignalReceived(15))
    machine.handle(end_of(0, -15))
    machine.handle(came(9.0))
    (end,) = machine.handle(OrphansGone())
    assert isinstance(end, v.Finish)
    assert end.history is not None
    assert (end.history.step, end.history.ended_at) == (9.0, ())


def test_there_may_be_something_to_wait_for_though_there_is_no_delay() -> None:
    machine = running(RestartPolicy(), pauses=True)
    machine.handle(end_of(0))
    assert machine.handle(OrphansGone()) == (v.Pause(0.0, 1),)
    assert machine.handle(v.PauseOver()) == (v.StartWorkers(1, 1, "failure", 1),)


# Several nodes


def of_several(policy: RestartPolicy) -> Machine:
    machine = Machine(9, policy=policy, alone=False)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset({0}), 0))
    return machine


def test_how_far_it_came_is_told_and_what_all_say_decides() -> None:
    machine = of_several(RestartPolicy(max_without_progress=1))
    machine.handle(end_of(0))
    own = came(None, 1)
    assert machine.handle(own) == (v.TellProgress(own),)
    machine.handle(OrphansGone())
    all_say = came(7.0, 2)
    (start,) = machine.handle(v.NodesCounted(progress=all_say))
    assert isinstance(start, v.StartWorkers)
    assert start.history == RestartHistory((2 * S,), 7.0, ())


# A preflight


PREFLIGHT = v.GroupStarted(frozenset({v.PREFLIGHT_RANK}), preflight=True)


def in_preflight(**more: object) -> Machine:
    machine = Machine(1, **more)  # type: ignore[arg-type]
    machine.handle(v.Begin())
    assert machine.handle(PREFLIGHT) == ()
    assert machine.in_preflight
    return machine


def preflight_ends(machine: Machine, exitcode: int = 0) -> v.Actions:
    assert machine.handle(end_of(v.PREFLIGHT_RANK, exitcode)) == (v.CleanUp(),)
    return machine.handle(OrphansGone())


def test_a_preflight_that_fails_is_a_cause_of_its_own() -> None:
    end = v.Finish("FAILED", "preflight")
    machine = in_preflight()
    assert preflight_ends(machine, 9) == (v.StartWorkers(1, 1, "preflight", 1),)
    machine.handle(PREFLIGHT)
    assert preflight_ends(machine, 9) == (end,)
    other = in_preflight(policy=RestartPolicy(on=frozenset({"failure"})))
    assert preflight_ends(other, 9) == (end,)


def test_no_worker_ran_in_an_attempt_whose_preflight_or_all_of_whose_starts_failed() -> None:
    machine = in_preflight()
    assert not machine.ran
    preflight_ends(machine)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.ran
    machine.handle(StartFailed(0, "/x", "no", 2, 1))
    assert machine.ran
    machine.handle(StartFailed(1, "/x", "no", 2, 1))
    assert not machine.ran
    machine.handle(OrphansGone())
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.ran


def test_a_failure_on_another_node_ends_a_preflight() -> None:
    machine = in_preflight(alone=False)
    ended = GroupEnd("failed", "node 1 (b)", 1)
    assert machine.handle(v.NodesAgreed("failure", ended))[0] == v.SignalWorkers(15, "failure")
    assert preflight_ends(machine, -15) == ()
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "failure", 1),)
