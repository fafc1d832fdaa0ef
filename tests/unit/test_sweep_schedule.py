"""Which job of a sweep runs when, decided without processes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from lllaunch.exit_codes import ExitCode
from lllaunch.spec import RESTART_CAUSES, RestartCause
from lllaunch.sweep import schedule as schedule_module
from lllaunch.sweep import schedule as v
from lllaunch.sweep.policy import Retries, Summary, SweepPolicy, cause_of
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.schedule import TABLE, ImpossibleSweepEvent, Scheduler
from lllaunch.watchdog import findings

FACTS: list[type] = list(v.SweepEvent.__args__)
SIGINT, SIGTERM = 2, 15
COMPOSE = v.ComposeNext()
S, J = v.SweepState, v.JobState


def gpus(*numbers: int) -> Lease:
    return Lease(tuple(str(number) for number in numbers))


class Sweep:
    """A scheduler of some GPUs, to talk to in short."""

    def __init__(self, size: int, policy: SweepPolicy | None = None) -> None:
        self.scheduler = Scheduler(gpus(*range(size)), policy)
        assert self.tell(v.BeginSweep()) == (COMPOSE,)

    def tell(self, fact: v.SweepEvent, now: float = 0.0) -> v.SweepActions:
        return self.scheduler.handle(fact, now)

    def job(self, number: int, need: int) -> list[v.SweepAction]:
        """Decisions about the next job, but for that to compose another one."""
        if not self.scheduler.composing:
            # As if there had been no bound on how far it looks ahead.
            self.scheduler.composing = True
        decisions = self.tell(v.JobComposed(number, Need(need)))
        return [decision for decision in decisions if decision != COMPOSE]

    def end(
        self, number: int, exit_code: int = 0, cause: RestartCause | None = None, now: float = 0.0
    ) -> list[v.SweepAction]:
        decisions = self.tell(v.JobEnded(number, exit_code, cause), now)
        return [decision for decision in decisions if decision != COMPOSE]

    @property
    def state(self) -> v.SweepState:
        return self.scheduler.state


def start(number: int, *on: int, attempt: int = 0) -> v.StartJob:
    return v.StartJob(number, gpus(*on), attempt)


def finish(signum: int | None = None, code: int | None = None, **counts: int) -> v.FinishSweep:
    summary = Summary(**counts)
    return v.FinishSweep(summary, summary.exit_code(signum) if code is None else code, signum)


# What cannot come in a state, and why.
OF_COMPOSING: set[type] = {v.JobComposed, v.JobBroken, v.NoMoreJobs}
OF_JOBS: set[type] = {v.LeaseRefused, v.SlotsFreed, v.JobNotStarted, v.JobEnded, v.RetryDue}
OF_BLOCKS: set[type] = {v.Blocked, v.Unblocked, v.Abandoned}
IMPOSSIBLE: dict[v.SweepState, set[type]] = {
    # Nothing was asked for or started.
    S.NEW: OF_COMPOSING | OF_JOBS | OF_BLOCKS,
    # A sweep begins once. What was not started for a failure would be started again at once.
    S.PACKING: {v.BeginSweep, v.JobNotStarted, v.Unblocked},
    # It is blocked once, whatever else fails.
    S.BLOCKED: {v.BeginSweep, v.Blocked},
    S.DRAINING: {v.BeginSweep},
    S.CANCELLING: {v.BeginSweep},
    S.KILLING: {v.BeginSweep},
}


def test_the_table_holds_every_pair_of_state_and_event_that_is_possible() -> None:
    for state in set(S) - {S.FINISHED}:
        missing = {event for event in FACTS if (state, event) not in TABLE}
        assert missing == IMPOSSIBLE[state], state
    assert not any(state is S.FINISHED for state, _ in TABLE), "then all is late news"


def test_a_sweep_never_goes_back_but_from_what_blocks_it() -> None:
    order = [S.NEW, S.PACKING, S.BLOCKED, S.DRAINING, S.CANCELLING, S.KILLING, S.FINISHED]
    for (state, event), (after, _) in TABLE.items():
        back = order.index(after) < order.index(state)
        assert back == (event is v.Unblocked and state is S.BLOCKED), (state, event)


@pytest.mark.parametrize(
    ("state", "fact"),
    [(state, fact) for state, facts in IMPOSSIBLE.items() for fact in sorted(facts, key=str)],
)
def test_an_impossible_fact_raises(state: v.SweepState, fact: type) -> None:
    scheduler = Scheduler(gpus(0))
    scheduler.state = state
    arguments: dict[type, tuple[object, ...]] = {
        v.JobComposed: (0, Need()),
        v.JobBroken: (0, 1),
        v.JobNotStarted: (0,),
        v.LeaseRefused: (0,),
        v.JobEnded: (0, 0),
        v.RetryDue: (0,),
    }
    with pytest.raises(ImpossibleSweepEvent, match=rf"{fact.__name__}.* in state {state.value}"):
        scheduler.handle(fact(*arguments.get(fact, ())), 0.0)


@pytest.mark.parametrize("fact", [v.JobComposed(5, Need()), v.NoMoreJobs()])
def test_nothing_is_composed_unasked(fact: v.SweepEvent) -> None:
    sweep = Sweep(1)
    sweep.scheduler.composing = False
    with pytest.raises(ImpossibleSweepEvent, match="not asked for"):
        sweep.tell(fact)


@pytest.mark.parametrize(
    "fact",
    [
        v.JobComposed(1, Need()),  # runs
        v.JobBroken(2, 1),  # waits
        v.JobComposed(0, Need()),  # waits for its retry
        v.JobEnded(2, 0),
        v.JobEnded(9, 0),
        v.LeaseRefused(2, ("0",)),
        v.RetryDue(1),
        v.LeaseRefused(1),
        v.LeaseRefused(1, ("7",)),
        v.LeaseRefused(1, (), (0,)),
    ],
)
def test_a_fact_about_what_is_not_there_raises(fact: v.SweepEvent) -> None:
    sweep = Sweep(1, SweepPolicy(retry_delay=1.0))
    sweep.job(0, 1)
    sweep.end(0, 137, "signal")
    sweep.job(1, 1)
    sweep.job(2, 1)
    sweep.scheduler.composing = True
    with pytest.raises(ImpossibleSweepEvent):
        sweep.tell(fact)


@pytest.mark.parametrize("name", ["policy", "pool", "schedule"])
def test_the_decisions_know_neither_processes_nor_time(name: str) -> None:
    tree = ast.parse(Path(schedule_module.__file__).with_name(f"{name}.py").read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    allowed = {"__future__", "bisect", "collections", "collections.abc", "dataclasses", "enum"}
    pure = {"lllaunch.sweep.policy", "lllaunch.sweep.pool"}
    pure |= {"lllaunch.exit_codes", "lllaunch.spec", "typing"}
    assert imported <= allowed | pure


def test_every_cause_has_its_retries() -> None:
    # a job has one node, and cannot lose another; to a sweep a preflight that fails is a failure
    assert set(Retries._fields) == set(RESTART_CAUSES) - {"node", "preflight"}
    assert [Retries(1, 2, 3, 4, 5).of(cause) for cause in ("failure", "timeout")] == [1, 5]


@pytest.mark.parametrize(
    ("exit_code", "kind", "cause"),
    [
        (0, "", None),
        (2, "", None),
        (5, "", None),
        (1, "", "failure"),
        (3, "ExitedNonZero", "failure"),
        (3, "PreflightFailure", "failure"),
        (7, "NoProgress", None),
        (7, "Stalled", None),
        (3, "KilledBySignal", "signal"),
        (3, "SpawnerLost", "signal"),
        (3, "OutOfMemory", "oom"),
        (3, "DeviceOutOfMemory", "oom"),
        (4, "OverMemory", "oom"),
        (4, "Stalled", "hang"),
        (4, "HungInKernel", "hang"),
        (4, "TimedOut", "timeout"),
        (4, "", "hang"),
        (143, "", "signal"),
        (137, "ExitedNonZero", "signal"),
    ],
)
def test_the_cause_of_a_jobs_end(exit_code: int, kind: str, cause: RestartCause | None) -> None:
    assert cause_of(exit_code, kind) == cause


def test_a_finding_is_to_a_sweep_what_it_is_to_a_restart() -> None:
    for kind in get_args(findings.Finding):
        if kind is not findings.Asked:  # nothing is wrong
            assert cause_of(3, kind.__name__) == findings.kind_of(object.__new__(kind))


def test_a_sweep_of_nothing_succeeds() -> None:
    assert Sweep(1).tell(v.NoMoreJobs()) == (finish(code=0),)


def test_jobs_run_side_by_side_and_composing_goes_on_meanwhile() -> None:
    sweep = Sweep(3)
    assert sweep.tell(v.JobComposed(0, Need(2))) == (COMPOSE, start(0, 0, 1))
    assert sweep.tell(v.JobComposed(1, Need(1))) == (COMPOSE, start(1, 2))
    assert sweep.tell(v.JobComposed(2, Need(1))) == (COMPOSE,)
    assert sweep.tell(v.JobComposed(3, Need(1))) == ()
    assert sweep.tell(v.JobEnded(1, 0)) == (
        v.Settle(1, J.SUCCEEDED, 1, 0),
        COMPOSE,
        start(2, 2),
    )
    assert sweep.tell(v.NoMoreJobs()) == ()
    assert sweep.end(0) == [v.Settle(0, J.SUCCEEDED, 1, 0), start(3, 0)]
    assert sweep.end(2) == [v.Settle(2, J.SUCCEEDED, 1, 0)]
    assert sweep.end(3) == [v.Settle(3, J.SUCCEEDED, 1, 0), finish(succeeded=4)]
    assert sweep.state is S.FINISHED
    assert sweep.tell(v.SweepSignalled(SIGINT)) == (), "late news"


def test_as_many_jobs_wait_as_run() -> None:
    sweep = Sweep(4)
    for number in range(4):
        assert sweep.tell(v.JobComposed(number, Need(1)))[0] == COMPOSE
    for number in range(4, 7):
        assert sweep.tell(v.JobComposed(number, Need(1))) == (COMPOSE,)
    assert sweep.tell(v.JobComposed(7, Need(1))) == ()


def test_idle_slots_look_further_for_a_job_such_as_there_was() -> None:
    sweep = Sweep(4)
    sweep.tell(v.JobComposed(0, Need(1)))
    for number in range(1, 64):
        assert sweep.tell(v.JobComposed(number, Need(4))) == (COMPOSE,)
    assert sweep.tell(v.JobComposed(64, Need(4))) == (), "64 wait"


def test_idle_slots_do_not_look_further_for_what_has_never_been() -> None:
    sweep = Sweep(4)
    sweep.tell(v.JobComposed(0, Need(3)))
    assert sweep.tell(v.JobComposed(1, Need(4))) == (COMPOSE,)
    assert sweep.tell(v.JobComposed(2, Need(3))) == ()


def test_max_parallel_bounds_what_runs() -> None:
    sweep = Sweep(8, SweepPolicy(max_parallel=2))
    assert sweep.job(0, 1) == [start(0, 0)]
    assert sweep.job(1, 1) == [start(1, 1)]
    assert sweep.job(2, 1) == []
    assert sweep.end(0) == [v.Settle(0, J.SUCCEEDED, 1, 0), start(2, 0)]


def test_the_first_in_number_that_fits_is_next() -> None:
    sweep = Sweep(2)
    sweep.job(7, 2)
    for number, need in ((5, 2), (4, 1), (6, 1), (3, 1)):
        assert sweep.job(number, need) == []
    assert sweep.end(7)[1:] == [start(3, 0), start(4, 1)]
    assert sweep.end(3)[1:] == [start(6, 0)], "5 does not fit"


def test_a_job_that_never_fits_fails_and_holds_up_nobody() -> None:
    sweep = Sweep(2)
    why = "needs 3 GPUs, of which the sweep has 2"
    assert sweep.job(0, 3) == [v.Settle(0, J.FAILED, exit_code=2, why=why)]
    assert sweep.job(1, 2) == [start(1, 0, 1)]
    sweep.tell(v.NoMoreJobs())
    assert sweep.end(1)[1:] == [finish(succeeded=1, failed=1, code=ExitCode.SWEEP)]


def test_a_broken_job_has_failed() -> None:
    sweep = Sweep(1)
    broken = v.Settle(0, J.FAILED, exit_code=1, why="no such group")
    assert sweep.tell(v.JobBroken(0, 1, "no such group")) == (broken, COMPOSE)
    assert sweep.tell(v.NoMoreJobs()) == (finish(failed=1, code=ExitCode.SWEEP),)


def test_while_nothing_can_be_started_what_runs_goes_on() -> None:
    sweep = Sweep(2)
    sweep.job(0, 1)
    sweep.job(1, 1)
    assert sweep.tell(v.Blocked("the disk is full")) == ()
    # neither a retry nor a job that is composed now is started, and none is composed
    assert sweep.end(0, 137, "signal") == [v.Retry(0, 1, "signal")]
    assert sweep.job(2, 1) == []
    assert sweep.end(1) == [v.Settle(1, J.SUCCEEDED, 1, 0)]
    sweep.scheduler.composing = False
    assert sweep.tell(v.Unblocked()) == (COMPOSE, start(0, 0, attempt=1), start(2, 1))


def test_a_job_that_could_not_be_started_waits() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.Blocked("no process"))
    assert sweep.tell(v.JobNotStarted(0)) == ()
    assert start(0, 0) in sweep.tell(v.Unblocked())


def test_a_sweep_that_can_start_nothing_any_more_ends_with_what_runs() -> None:
    sweep = Sweep(2)
    for number in range(4):
        sweep.job(number, 1)
    sweep.tell(v.Blocked("removed"))
    sweep.tell(v.JobNotStarted(1))
    left = (1, 2, 3)
    assert sweep.tell(v.Abandoned()) == tuple(v.Settle(number, J.NOT_RUN) for number in left)
    assert sweep.end(0)[-1] == finish(succeeded=1, not_run=3)


def test_a_sweep_ends_though_nothing_can_be_started_if_nothing_is_to_be() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.NoMoreJobs())
    sweep.tell(v.Blocked("the disk is full"))
    assert sweep.end(0)[-1] == finish(succeeded=1)


def test_why_an_attempt_failed_is_told_when_the_job_is_settled() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    ended = v.JobEnded(0, 3, None, "rank 1: no")
    assert sweep.tell(ended)[0] == v.Settle(0, J.FAILED, 1, 3, "rank 1: no")


# Patience


@pytest.mark.parametrize("patience", [0, 1, 5, 64])
def test_smaller_jobs_overtake_a_big_one_so_often_and_no_more(patience: int) -> None:
    sweep = Sweep(4, SweepPolicy(patience=patience))
    sweep.job(0, 1)
    sweep.job(1, 1)
    assert sweep.job(2, 4) == []
    overtook, running = [], [0, 1]
    # For each that ends another one comes: the machine is never empty by itself.
    for number in range(3, 1000):
        decisions = sweep.job(number, 1) + sweep.end(running.pop(0))
        started = [d.number for d in decisions if isinstance(d, v.StartJob)]
        if 2 in started:
            break
        overtook += started
        running += started
    assert 2 in sweep.scheduler.running
    assert overtook == list(range(3, 3 + patience))


def test_what_a_starving_job_does_not_need_is_not_kept_for_it() -> None:
    sweep = Sweep(4, SweepPolicy(patience=1))
    sweep.job(0, 3)
    assert sweep.job(1, 2) == []
    assert sweep.job(2, 1) == [start(2, 3)], "overtakes 1"
    assert sweep.job(3, 1) == []
    sweep.end(2)
    assert not sweep.scheduler.waiting.room(Need(1), Need(4)).gpus
    # Two of four are enough for job 1, and job 3 gets one of the others.
    assert sweep.end(0)[1:] == [start(1, 0, 1), start(3, 2)]


def test_a_starving_job_lets_by_who_needs_other_slots() -> None:
    scheduler = Scheduler(Lease(("0", "1"), (0, 1)), SweepPolicy(patience=0))
    scheduler.handle(v.BeginSweep(), 0.0)
    scheduler.handle(v.JobComposed(0, Need(1, 1)), 0.0)
    scheduler.handle(v.JobComposed(1, Need(2, 0)), 0.0)
    assert scheduler.composing
    assert scheduler.handle(v.JobComposed(2, Need(1, 1)), 0.0) == ()
    scheduler.composing = True
    started = v.StartJob(3, Lease((), (1,)))
    assert started in scheduler.handle(v.JobComposed(3, Need(0, 1)), 0.0)


def test_nothing_is_kept_for_a_job_that_others_leave_too_little_for() -> None:
    sweep = Sweep(2, SweepPolicy(patience=0))
    assert sweep.job(0, 2) == [start(0, 0, 1)]
    assert sweep.tell(v.LeaseRefused(0, ("0",))) == ()
    assert sweep.job(1, 1) == [start(1, 1)]
    assert sweep.end(1)[1:] == []
    # Now it can be: one of ours will end.
    assert sweep.job(2, 1) == [start(2, 1)]
    assert sweep.tell(v.SlotsFreed(("0",))) == ()
    assert sweep.job(3, 1) == []
    assert sweep.end(2)[1:] == [start(0, 0, 1)]


# Slots of other launchers


def test_a_refused_job_takes_other_slots_or_waits() -> None:
    sweep = Sweep(3)
    assert sweep.job(0, 2) == [start(0, 0, 1)]
    assert start(0, 0, 2) in sweep.tell(v.LeaseRefused(0, ("1",)))
    assert start(0) not in sweep.tell(v.LeaseRefused(0, ("0",)))
    assert sweep.job(1, 1) == [start(1, 2)]
    assert sweep.tell(v.SlotsFreed(("0",))) == ()
    assert start(0, 0, 1) in sweep.tell(v.SlotsFreed(("1", "2", "77")))
    sweep.scheduler.composing = True
    sweep.tell(v.NoMoreJobs())
    sweep.end(0)
    assert sweep.end(1)[1:] == [finish(succeeded=2)]


def test_a_sweep_waits_for_slots_that_others_hold() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.LeaseRefused(0, ("0",)))
    assert sweep.tell(v.NoMoreJobs()) == ()
    assert sweep.tell(v.SlotsFreed(("0",))) == (start(0, 0),)


# Failures


def test_a_failed_job_does_not_hold_up_the_others() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.job(1, 1)
    assert sweep.end(0, 3, "failure") == [v.Settle(0, J.FAILED, 1, 3), start(1, 0)]
    sweep.tell(v.NoMoreJobs())
    assert sweep.end(1)[1:] == [finish(succeeded=1, failed=1, code=ExitCode.SWEEP)]


def test_after_enough_failures_nothing_is_started_and_what_runs_goes_on() -> None:
    sweep = Sweep(3, SweepPolicy(max_failures=2))
    for number in range(4):
        sweep.job(number, 1)
    assert sweep.end(0, 3, "failure") == [v.Settle(0, J.FAILED, 1, 3), start(3, 0)]
    sweep.job(4, 1)
    failed = [v.Settle(1, J.FAILED, 1, 4), v.Settle(4, J.NOT_RUN)]
    assert sweep.end(1, 4, "timeout") == failed
    assert sweep.state is S.DRAINING
    assert sweep.tell(v.JobComposed(5, Need(1))) == (v.Settle(5, J.NOT_RUN),)
    assert sweep.end(2) == [v.Settle(2, J.SUCCEEDED, 1, 0)]
    assert sweep.end(3, 137, "signal") == [
        v.Settle(3, J.FAILED, 1, 137),
        finish(succeeded=1, failed=3, not_run=2, code=ExitCode.SWEEP),
    ]


def test_a_broken_job_may_be_one_too_many() -> None:
    sweep = Sweep(1, SweepPolicy(max_failures=1))
    broken = v.Settle(0, J.FAILED, exit_code=2)
    assert sweep.tell(v.JobBroken(0, 2)) == (broken, finish(failed=1, code=ExitCode.SWEEP))


def test_jobs_that_are_never_composed_have_not_run() -> None:
    scheduler = Scheduler(gpus(0), SweepPolicy(max_failures=1))
    scheduler.handle(v.BeginSweep(total=1000), 0.0)
    assert scheduler.handle(v.JobBroken(0, 1), 0.0)[-1] == finish(failed=1, not_run=999)


def test_a_total_that_was_too_small_is_no_harm() -> None:
    scheduler = Scheduler(gpus(0))
    scheduler.handle(v.BeginSweep(total=1), 0.0)
    scheduler.handle(v.JobBroken(0, 1), 0.0)
    scheduler.handle(v.JobBroken(1, 1), 0.0)
    assert scheduler.handle(v.NoMoreJobs(), 0.0) == (finish(failed=2),)


def test_a_retried_job_goes_to_the_front() -> None:
    sweep = Sweep(1)
    for number in (3, 1, 2):
        sweep.job(number, 1)
    again = [v.Retry(3, 1, "hang"), start(3, 0, attempt=1)]
    assert sweep.end(3, 4, "hang") == again
    assert sweep.end(3, 4, "hang") == [v.Settle(3, J.FAILED, 2, 4), start(1, 0)]


def test_each_cause_has_its_own_count() -> None:
    sweep = Sweep(1, SweepPolicy(retries=Retries(failure=1, signal=2)))
    sweep.job(0, 1)
    causes: list[RestartCause] = ["signal", "failure", "signal"]
    for attempt, cause in enumerate(causes, 1):
        again = [v.Retry(0, attempt, cause), start(0, 0, attempt=attempt)]
        assert sweep.end(0, 3, cause) == again
    assert sweep.end(0, 3, "failure") == [v.Settle(0, J.FAILED, 4, 3)]


def test_what_would_be_in_vain_is_not_tried_again() -> None:
    sweep = Sweep(1, SweepPolicy(retries=Retries(9, 9, 9, 9, 9)))
    sweep.job(0, 1)
    assert sweep.end(0, 2, cause_of(2)) == [v.Settle(0, J.FAILED, 1, 2)]


def test_a_refused_attempt_is_none() -> None:
    sweep = Sweep(2)
    sweep.job(0, 1)
    sweep.end(0, 137, "signal")
    assert start(0, 1, attempt=1) in sweep.tell(v.LeaseRefused(0, ("0",)))


def test_a_retry_may_have_to_wait_while_others_run() -> None:
    sweep = Sweep(1, SweepPolicy(retry_delay=10.0))
    sweep.job(0, 1)
    sweep.job(1, 1)
    assert sweep.end(0, 4, "hang", now=5.0) == [v.Retry(0, 1, "hang", at=15.0), start(1, 0)]
    sweep.tell(v.NoMoreJobs())
    assert sweep.end(1) == [v.Settle(1, J.SUCCEEDED, 1, 0)]
    assert sweep.tell(v.RetryDue(0), 15.0) == (start(0, 0, attempt=1),)
    assert sweep.end(0)[-1] == finish(succeeded=2)


# Signals


def test_a_signal_cancels_what_runs_and_starts_nothing() -> None:
    sweep = Sweep(2)
    for number in range(3):
        sweep.job(number, 1)
    told = (v.SignalJobs(SIGTERM), v.Settle(2, J.NOT_RUN))
    assert sweep.tell(v.SweepSignalled(SIGTERM)) == told
    assert sweep.state is S.CANCELLING
    assert sweep.end(0, 143, "signal") == [v.Settle(0, J.CANCELLED, 1, 143)]
    assert sweep.end(1) == [
        v.Settle(1, J.SUCCEEDED, 1, 0),
        finish(SIGTERM, 143, succeeded=1, cancelled=1, not_run=1),
    ]


def test_a_job_that_fails_by_itself_after_a_signal_has_failed() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.SweepSignalled(SIGINT))
    end = finish(SIGINT, 130, failed=1)
    assert sweep.end(0, 3, "signal") == [v.Settle(0, J.FAILED, 1, 3), end]


def test_the_second_signal_kills_and_so_does_every_other() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.SweepSignalled(SIGINT))
    assert sweep.tell(v.SweepSignalled(SIGTERM)) == (v.KillJobs(),)
    assert sweep.tell(v.SweepSignalled(SIGTERM)) == (v.KillJobs(),)
    assert sweep.end(0, 137, "signal")[-1] == finish(SIGINT, 130, cancelled=1)


def test_a_signal_that_slurm_delivers_itself_is_not_forwarded() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    assert sweep.tell(v.SweepSignalled(SIGTERM, forward=False)) == ()
    assert sweep.tell(v.SweepSignalled(SIGTERM, forward=False)) == (v.KillJobs(),)


def test_a_signal_before_anything_runs_ends_the_sweep() -> None:
    scheduler = Scheduler(gpus(0))
    assert scheduler.handle(v.SweepSignalled(SIGINT), 0.0) == (finish(SIGINT, 130),)
    sweep = Sweep(1)
    assert sweep.tell(v.SweepSignalled(SIGINT)) == (finish(SIGINT, 130),)
    assert sweep.tell(v.JobComposed(0, Need(1))) == (), "late news"


def test_a_job_whose_retry_a_signal_prevents_has_failed() -> None:
    sweep = Sweep(1, SweepPolicy(retry_delay=1.0))
    sweep.job(0, 1)
    sweep.job(1, 1)
    sweep.end(0, 4, "hang")
    decisions = sweep.tell(v.SweepSignalled(SIGINT))
    assert decisions == (v.SignalJobs(SIGINT), v.Settle(0, J.FAILED, 1, 4))
    assert sweep.tell(v.RetryDue(0)) == (), "its moment was set before"
    assert sweep.end(1, 130, "signal")[-1] == finish(SIGINT, 130, failed=1, cancelled=1)


def test_a_job_that_was_refused_when_the_signal_came_has_not_run() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.SweepSignalled(SIGINT))
    assert sweep.tell(v.LeaseRefused(0, ("0",))) == (
        v.Settle(0, J.NOT_RUN),
        finish(SIGINT, 130, not_run=1),
    )


def test_a_signal_after_too_many_failures_ends_what_still_runs() -> None:
    sweep = Sweep(2, SweepPolicy(max_failures=1))
    sweep.job(0, 1)
    sweep.job(1, 1)
    sweep.end(0, 3, "failure")
    assert sweep.tell(v.SweepSignalled(SIGINT)) == (v.SignalJobs(SIGINT),)
    assert sweep.end(1, 130, "signal")[-1] == finish(SIGINT, 130, failed=1, cancelled=1)


def test_a_job_whose_composing_got_the_signal_of_the_sweep_was_not_run() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.scheduler.composing = True
    sweep.tell(v.SweepSignalled(SIGINT))
    assert sweep.tell(v.JobBroken(1, 130)) == (v.Settle(1, J.NOT_RUN),)


def test_what_is_composed_too_late_is_broken_or_not_run() -> None:
    sweep = Sweep(1)
    sweep.job(0, 1)
    sweep.tell(v.SweepSignalled(SIGINT))
    late: dict[v.SweepEvent, v.JobState | None] = {
        v.JobBroken(1, 1): J.FAILED,
        v.JobComposed(1, Need()): None,
    }
    for fact, state in late.items():
        sweep.scheduler.composing = True
        (settled,) = sweep.tell(fact)
        assert isinstance(settled, v.Settle)
        assert settled.state is (state or J.NOT_RUN)
