"""Which job of a sweep runs when, shown by whole sweeps that are played through.

`World` plays the launcher and other launchers beside it, in any order of events, keeps books of its
own, and says what has to follow. The examples show what it does not: what is impossible, how far
ahead jobs are composed, what each end of a job counts as.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.errors import ExitCode
from lllaunch.spec import RestartCause
from lllaunch.sweep import schedule as v
from lllaunch.sweep.pool import Lease, Need, Pool, fits, never_fits, without
from lllaunch.sweep.schedule import Retries, Scheduler, SweepPolicy, cause_of
from lllaunch.watchdog import findings

SIGINT, SIGKILL, SIGTERM = 2, 9, 15
J = v.JobState
Slot = str | int
# What may follow `ComposeNext`: the job's number comes with it.
Script = list[v.JobComposed | v.JobBroken]


def machine(gpus: int, cpus: int = 0) -> Lease:
    return Lease(tuple(str(number) for number in range(gpus)), tuple(range(cpus)))


# What the end of a job is to a sweep


@pytest.mark.parametrize(
    ("exit_code", "kind", "cause"),
    [
        (0, "", None),
        (2, "", None),
        (5, "", None),
        (1, "", "failure"),
        (3, "ExitedNonZero", "failure"),
        (3, "PreflightFailure", "failure"),
        (7, "Stalled", None),
        (3, "KilledBySignal", "signal"),
        (3, "SpawnerLost", "signal"),
        (3, "TimerExpired", "hang"),
        (3, "OutOfMemory", "oom"),
        (3, "DeviceOutOfMemory", "oom"),
        (4, "", "hang"),
        (137, "ExitedNonZero", "signal"),
    ],
)
def test_the_cause_of_a_jobs_end(exit_code: int, kind: str, cause: RestartCause | None) -> None:
    assert cause_of(exit_code, kind) == cause


def test_a_finding_is_to_a_sweep_what_it_is_to_a_restart() -> None:
    for kind in get_args(findings.Finding):
        if kind not in (findings.Asked, findings.Straggler):  # nothing ends for them
            needed = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
            assert cause_of(3, kind.__name__) == findings.kind_of(kind(*[0] * needed))


# Examples


OVER = (v.FinishSweep(0),)


class Sweep:
    """A scheduler of some GPUs, to talk to in short."""

    def __init__(self, size: int, jobs: int = 100) -> None:
        self.scheduler = Scheduler(machine(size), None, range(jobs))
        assert self.tell(v.BeginSweep()) == ((v.ComposeNext(0),) if jobs else OVER)

    def tell(self, fact: v.SweepEvent) -> v.SweepActions:
        return self.scheduler.handle(fact, 0.0)


def test_as_many_jobs_wait_as_run() -> None:
    sweep = Sweep(4)
    for number in range(4):
        assert sweep.tell(v.JobComposed(number, Need(1)))[0] == v.ComposeNext(number + 1)
    for number in range(4, 7):
        assert sweep.tell(v.JobComposed(number, Need(1))) == (v.ComposeNext(number + 1),)
    assert sweep.tell(v.JobComposed(7, Need(1))) == ()


def test_idle_slots_look_further_for_a_job_such_as_there_was() -> None:
    sweep = Sweep(4)
    sweep.tell(v.JobComposed(0, Need(1)))
    for number in range(1, 64):
        assert sweep.tell(v.JobComposed(number, Need(4))) == (v.ComposeNext(number + 1),)
    assert sweep.tell(v.JobComposed(64, Need(4))) == (), "64 wait"
    # nor for what has never been
    sweep = Sweep(4)
    sweep.tell(v.JobComposed(0, Need(3)))
    assert sweep.tell(v.JobComposed(1, Need(4))) == (v.ComposeNext(2),)
    assert sweep.tell(v.JobComposed(2, Need(3))) == ()


def test_a_signal_before_anything_runs_ends_the_sweep() -> None:
    sweep = Sweep(1)
    assert sweep.tell(v.SweepSignalled(SIGINT)) == (v.FinishSweep(130, SIGINT),)
    assert sweep.tell(v.JobComposed(0, Need(1))) == (), "late news"


# Whole sweeps


def slots_of(lease: Lease) -> set[Slot]:
    return {*lease.gpus, *lease.cpus}


def lease_of(slots: set[Slot]) -> Lease:
    gpus = sorted(slot for slot in slots if isinstance(slot, str))
    return Lease(tuple(gpus), tuple(sorted(slot for slot in slots if isinstance(slot, int))))


def count(slots: set[Slot]) -> Need:
    lease = lease_of(slots)
    return Need(len(lease.gpus), len(lease.cpus))


@dataclass
class Known:
    """What the world remembers of a job that was composed."""

    need: Need
    attempts: int = 0
    overtaken: int = 0
    retried: dict[RestartCause, int] = field(default_factory=dict)
    last: int | None = None
    why: str = ""


class World:
    """Plays the launcher and other launchers beside it, and keeps books of its own."""

    def __init__(self, slots: Lease, policy: SweepPolicy, script: Script) -> None:
        self.scheduler = Scheduler(slots, policy, [fact.number for fact in script])
        self.policy = policy
        self.script = list(script)
        self.all = slots_of(slots)
        self.jobs: dict[int, Known] = {}
        self.running: dict[int, set[Slot]] = {}
        self.waiting: set[int] = set()
        self.paused: dict[int, float] = {}
        self.final: dict[int, v.Settle] = {}
        # How each job ends that is not to be started, and the next attempt of one that has failed.
        self.refused: dict[int, v.Settle] = {}
        self.retry: v.Retry | None = None
        self.ending: int | None = None
        # Slots of other launchers, and those that the scheduler was told of.
        self.foreign: set[Slot] = set()
        self.told: set[Slot] = set()
        self.composing = False
        # Whether nothing can be started, that was told, and it will stay so.
        self.failing = self.blocked = self.abandoned = False
        self.signum: int | None = None
        self.sent: list[v.SweepAction] = []
        self.end: v.FinishSweep | None = None
        self.now = 0.0
        self.tell(v.BeginSweep())

    # Books

    def rank(self, number: int) -> tuple[bool, int]:
        """Those that are tried again come first, then those of lower numbers."""
        return (self.jobs[number].attempts == 0, number)

    def in_order(self) -> list[int]:
        return sorted(self.waiting, key=self.rank)

    def held(self) -> set[Slot]:
        return set().union(*self.running.values())

    def halted(self) -> bool:
        failed = sum(settled.state is J.FAILED for settled in self.final.values())
        limit = self.policy.max_failures
        stopped = self.signum is not None or self.abandoned
        return stopped or (limit is not None and failed >= limit)

    def parallel(self) -> bool:
        limit = self.policy.max_parallel
        return limit is None or len(self.running) < limit

    def starving(self) -> int | None:
        """The job that slots are kept for: not one that others leave too little for."""
        ours = count(self.all - self.told)
        for number in self.in_order():
            job = self.jobs[number]
            if job.overtaken >= self.policy.patience and fits(job.need, ours):
                return number
        return None

    def next(self) -> int | None:
        """The job to be started: the first that fits what is free, and not kept for another."""
        free = count(self.all - self.told - self.held())
        first = self.starving()
        room = free if first is None else without(free, self.jobs[first].need)
        fitting = (
            number
            for number in self.in_order()
            if fits(self.jobs[number].need, free if number == first else room)
        )
        return next(fitting, None)

    # What is told and decided

    def tell(self, fact: v.SweepEvent) -> None:
        facts = [fact]
        while facts:
            fact = facts.pop(0)
            if isinstance(fact, v.JobNotStarted):
                self.told |= slots_of(fact.held)
                del self.running[fact.number]
                self.waiting.add(fact.number)
            decisions = self.scheduler.handle(fact, self.now)
            kinds = [type(decision) for decision in decisions]
            if v.ComposeNext in kinds and v.StartJob in kinds:
                # it goes on beside the starting
                assert kinds.index(v.ComposeNext) < kinds.index(v.StartJob)
            for decision in decisions:
                assert self.end is None, f"{decision} after the end"
                # What follows is told when all that was decided has been performed.
                facts += self.perform(decision)
        self.check()

    def perform(self, decision: v.SweepAction) -> list[v.SweepEvent]:
        if isinstance(decision, v.StartJob):
            return self.start(decision)
        if isinstance(decision, v.ComposeNext):
            assert not any((self.composing, self.blocked, self.halted()))
            assert decision.number == self.script[0].number
            assert len(self.waiting) < max(64, len(self.running))
            self.composing = True
        elif isinstance(decision, v.Retry):
            self.note_retry(decision)
        elif isinstance(decision, v.Settle):
            self.settle(decision)
        elif isinstance(decision, v.FinishSweep):
            assert not any((self.running, self.waiting, self.paused))
            self.end = decision
        else:
            self.sent.append(decision)
        return []

    def start(self, decision: v.StartJob) -> list[v.SweepEvent]:
        """Starts a job, unless that fails or another launcher holds some of its slots."""
        number, slots = decision.number, slots_of(decision.lease)
        job = self.jobs[number]
        assert not self.halted(), "started after a stop"
        assert not self.blocked or self.failing, "started though nothing can be"
        assert self.parallel()
        assert number == self.next()
        assert decision.attempt == job.attempts
        assert count(slots) == job.need
        assert slots <= self.all - self.held() - self.told
        self.waiting.remove(number)
        for other in self.waiting:
            if self.rank(other) < self.rank(number):
                self.jobs[other].overtaken += 1
        self.running[number] = slots
        if self.failing:
            blocked: list[v.SweepEvent] = [] if self.blocked else [v.Blocked("no")]
            self.blocked = True
            return [*blocked, v.JobNotStarted(number)]
        lost = lease_of(slots & self.foreign)
        return [v.JobNotStarted(number, lost)] if slots & self.foreign else []

    def note_retry(self, decision: v.Retry) -> None:
        assert decision == self.retry
        retried = self.jobs[decision.number].retried
        retried[decision.cause] = retried.get(decision.cause, 0) + 1
        if decision.at is None:
            self.waiting.add(decision.number)
        else:
            self.paused[decision.number] = decision.at

    def settle(self, decision: v.Settle) -> None:
        number = decision.number
        assert number not in self.final, "settled twice"
        assert number not in self.running
        self.final[number] = decision
        self.waiting.discard(number)
        self.paused.pop(number, None)
        assert decision == self.end_of(number)
        if decision.state is J.NOT_RUN:
            assert self.halted()

    def end_of(self, number: int) -> v.Settle:
        """What becomes of a job that does not run again."""
        if number in self.refused:
            return self.refused[number]
        job = self.jobs[number]
        state = J.FAILED if job.last else J.SUCCEEDED
        if job.last is None:
            state = J.NOT_RUN
        elif number == self.ending and self.signum is not None and job.last > 128:
            state = J.CANCELLED
        return v.Settle(number, state, job.attempts, job.last, job.why)

    def check(self) -> None:
        """What holds whenever nothing is under way."""
        if self.end is not None or self.halted() or self.blocked:
            return
        if self.parallel():
            assert self.next() is None, "one could run"
        assert self.composing or not self.script or len(self.waiting) >= max(2, len(self.running))

    # What may happen

    def answer(self) -> None:
        self.composing = False
        fact = self.script.pop(0)
        number = fact.number
        if isinstance(fact, v.JobBroken):
            # its process may have got the signal to the launcher, too
            failed = self.signum is None or fact.exit_code <= 128
            end = v.Settle(number, J.FAILED, 0, fact.exit_code, fact.why)
            self.refused[number] = end if failed else v.Settle(number, J.NOT_RUN)
        elif not self.halted() and (why := never_fits(fact.need, count(self.all))):
            self.refused[number] = v.Settle(number, J.FAILED, 0, int(ExitCode.CONFIG), why)
        else:
            self.jobs[number] = Known(fact.need)
            self.waiting.add(number)
        self.tell(fact)
        assert number in self.jobs or number in self.final

    def finish_job(self, number: int, exit_code: int, cause: RestartCause | None) -> None:
        del self.running[number]
        job = self.jobs[number]
        job.attempts += 1
        job.overtaken, job.last, job.why = 0, exit_code, f"{job.attempts} of {number}"
        self.ending, self.retry = number, None
        has_chance = cause is not None and job.retried.get(cause, 0) < self.policy.retries.of(cause)
        if cause is not None and has_chance and exit_code and not self.halted():
            delay = self.policy.retry_delay
            self.retry = v.Retry(number, job.attempts, cause, self.now + delay if delay else None)
        self.tell(v.JobEnded(number, exit_code, cause, job.why))
        self.ending = None
        assert (number in self.final) == (self.retry is None)
        states = [number in jobs for jobs in (self.final, self.waiting, self.paused, self.running)]
        assert sum(states) == 1

    def signal(self, signum: int) -> None:
        first = self.signum is None
        self.signum = signum if first else self.signum
        running = bool(self.running)
        self.sent.clear()
        self.tell(v.SweepSignalled(signum))
        expected: list[v.SweepAction] = [v.SignalJobs(signum if first else SIGKILL)]
        assert self.sent == (expected if running else [])

    def free(self, slots: set[Slot]) -> None:
        self.foreign -= slots
        back, self.told = self.told & slots, self.told - slots
        if back:
            # and others, which were not named
            lease = lease_of(back)
            self.tell(v.SlotsFreed(Lease((*lease.gpus, "unknown"), lease.cpus)))

    def due(self, number: int) -> None:
        self.now = max(self.now, self.paused.pop(number))
        self.waiting.add(number)
        self.tell(v.RetryDue(number))

    def happen(self, what: int, which: int) -> None:
        """Let something happen that can; else nothing does."""
        self.now += 0.25
        number = sorted(self.running)[which % len(self.running)] if self.running else None
        others = sorted(self.all - self.held() - self.foreign, key=str)
        if what < 40 and self.composing:
            self.answer()
        elif what < 52 and number is not None:
            self.finish_job(number, 0, None)
        elif what < 64 and number is not None:
            causes: list[Any] = [*Retries._fields, None]
            self.finish_job(number, (3, 4, 2, 137, 143)[which % 5], causes[which % 6])
        elif what < 70 and others:
            self.foreign.add(others[which % len(others)])
        elif what < 82 and self.foreign:
            self.free({sorted(self.foreign, key=str)[which % len(self.foreign)]})
        elif what < 90 and self.paused:
            self.due(min(self.paused))
        elif 90 <= what < 97:
            self.fail(what, which)
        elif what >= (98 if self.signum is None else 80):
            self.signal((1, SIGINT, SIGTERM)[which % 3])

    def fail(self, what: int, which: int) -> None:
        """Let something fail that all jobs need, or work again."""
        if what < 92:
            self.failing = not self.blocked
        elif what < 94 and not self.blocked:
            self.blocked = True
            self.tell(v.Blocked("no"))
        elif what < 96 and self.blocked:
            self.unblock()
        elif what == 96 and which < 5:
            self.failing = self.blocked = False
            self.abandoned = True
            self.tell(v.Abandoned())

    def unblock(self) -> None:
        self.failing = self.blocked = False
        self.tell(v.Unblocked())

    def play_out(self) -> None:
        """From wherever things are, plain ends lead to the end of the sweep."""
        self.failing = False
        if self.blocked:
            self.unblock()
        self.free(set(self.foreign))
        for _ in range(10_000):
            if self.end is not None:
                return
            if self.running:
                self.finish_job(min(self.running), 0, None)
            elif self.composing:
                self.answer()
            else:
                self.due(min(self.paused))
        raise AssertionError("the sweep does not end")

    def check_end(self, total: int) -> None:
        assert self.end is not None
        assert set(self.final) >= set(self.jobs)
        states = [settled.state for settled in self.final.values()]
        assert self.end.signum == self.signum
        if self.signum is not None:
            assert self.end.exit_code == 128 + self.signum
        else:
            good = states.count(J.SUCCEEDED) == total
            assert self.end.exit_code == (0 if good else ExitCode.SWEEP)
            if self.policy.max_failures is None and not self.abandoned:
                assert len(states) == total


POLICIES = st.builds(
    SweepPolicy,
    max_parallel=st.sampled_from([None, None, 1, 2, 3]),
    max_failures=st.sampled_from([None, None, None, 1, 4]),
    retries=st.builds(Retries, *[st.integers(0, 2)] * 5),
    retry_delay=st.sampled_from([0.0, 1.0]),
    patience=st.sampled_from([0, 1, 1, 2, 4, 64]),
)


def play(seed: int, policy: SweepPolicy, *, foreign: bool, signals: bool) -> None:
    """One sweep; the dice are cheaper than hypothesis's, and its seed shrinks well enough."""
    dice = random.Random(seed)
    slots = machine(dice.randrange(5), dice.randrange(1, 7))
    script: Script = []
    largest = dice.choice([2, 4, 7])
    numbers = list(range(dice.randrange(30)))
    if dice.random() < 0.2:
        # A resumed sweep: numbers of before, in another order.
        dice.shuffle(numbers)
    for number in numbers:
        if dice.random() < 0.09:
            script.append(v.JobBroken(number, dice.choice([1, 2, 137]), f"no {number}"))
        else:
            need = Need(dice.choice([0, 0, 1, 2, 4]), dice.randrange(largest))
            script.append(v.JobComposed(number, need))
    world = World(slots, policy, script)
    for _ in range(dice.choice([10, 60, 150])):
        if world.end is not None:
            break
        what = dice.randrange(100 if signals else 98)
        if foreign or not 64 <= what < 82:
            world.happen(what, dice.randrange(60))
    if world.end is None:
        world.play_out()
    world.check_end(len(script))


@pytest.mark.slow
@settings(max_examples=700)
@given(st.integers(0, 2**32), POLICIES, st.booleans(), st.booleans())
def test_any_course_of_events_ends_and_keeps_the_promises(
    seed: int, policy: SweepPolicy, foreign: bool, signals: bool
) -> None:
    for part in range(4):
        play(seed + part, policy, foreign=foreign, signals=signals)


NONE = "; launch.resources.cpus_per_proc=0 asks for none"


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Need(2, 8), ""),
        (Need(3, 8), "needs 3 GPUs, of which the sweep has 2"),
        (
            Need(4, 9),
            f"needs 4 GPUs, of which the sweep has 2, and 9 CPU slots, of which it has 8{NONE}",
        ),
    ],
)
def test_what_never_fits_says_why(need: Need, why: str) -> None:
    assert never_fits(need, Need(2, 8)) == why
    assert never_fits(Need(1, 0), Need(0, 8)) == "needs 1 GPU, of which the sweep has 0"


def test_the_lowest_slots_come_first() -> None:
    # in the order of the environment
    slots = Pool(Lease(("7", "GPU-ab", "2", "1"), tuple(range(8))))
    assert slots.take(Need(1, 2)) == Lease(("7",), (0, 1))
    assert slots.take(Need(2, 3)) == Lease(("GPU-ab", "2"), (2, 3, 4))
    assert slots.free == Need(1, 3)


@given(
    st.sets(st.integers(0, 200), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 50)), max_size=60),
)
def test_leases_are_disjoint_and_compact_whatever_the_order(
    cores: set[int], steps: list[tuple[int, bool, int]]
) -> None:
    slots = Pool(Lease((), tuple(cores)))
    free = set(cores)
    held: list[Lease] = []
    for count, give, which in steps:
        if give and held:
            lease = held.pop(which % len(held))
            slots.give(lease)
            free |= set(lease.cpus)
        elif count <= len(free):
            runs = {core for core in free if set(range(core, core + count)) <= free}
            lease = slots.take(Need(0, count))
            assert len(lease.cpus) == count
            assert set(lease.cpus) <= free
            assert list(lease.cpus) == sorted(lease.cpus)
            if runs and count:
                assert lease.cpus[0] in runs
                assert lease.cpus[-1] == lease.cpus[0] + count - 1
            elif count:
                assert list(lease.cpus) == sorted(free)[:count]
            free -= set(lease.cpus)
            held.append(lease)
        assert slots.free == Need(0, len(free))
