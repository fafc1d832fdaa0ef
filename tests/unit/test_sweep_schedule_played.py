"""Sweeps played through: random jobs, ends, slots of others, signals, in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.exit_codes import ExitCode
from lllaunch.spec import RESTART_CAUSES, RestartCause
from lllaunch.sweep import schedule as v
from lllaunch.sweep.policy import Retries, SweepPolicy
from lllaunch.sweep.pool import Lease, Need, fits, never_fits, without
from lllaunch.sweep.schedule import Scheduler

J = v.JobState
Slot = str | int
# What may follow `ComposeNext`: the job's number comes with it.
Script = list[v.JobComposed | v.JobBroken]


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
    retries: Retries
    attempts: int = 0
    overtaken: int = 0
    retried: dict[RestartCause, int] = field(default_factory=dict)
    last: int | None = None


class World:
    """Plays the launcher and other launchers beside it, and keeps books of its own."""

    def __init__(self, slots: Lease, policy: SweepPolicy, script: Script) -> None:
        self.scheduler = Scheduler(slots, policy)
        self.policy = policy
        self.script = list(script)
        self.all = slots_of(slots)
        self.jobs: dict[int, Known] = {}
        self.running: dict[int, set[Slot]] = {}
        self.waiting: set[int] = set()
        self.paused: dict[int, float] = {}
        self.final: dict[int, v.Settle] = {}
        # Slots of other launchers, and those that the scheduler was told of.
        self.foreign: set[Slot] = set()
        self.told: set[Slot] = set()
        self.composing = self.no_more = self.killed = False
        # Whether nothing can be started, that was told, and it will stay so.
        self.failing = self.blocked = self.abandoned = False
        self.signum: int | None = None
        self.end: v.FinishSweep | None = None
        self.now = 0.0
        # The job that slots are kept for, and the attempts that ran when that began.
        self.kept: tuple[int, set[tuple[int, int]]] | None = None
        self.tell(v.BeginSweep(len(script)))

    # JobRecords

    def rank(self, number: int) -> tuple[bool, int]:
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
        ours = count(self.all - self.told)
        for number in self.in_order():
            job = self.jobs[number]
            if job.overtaken >= self.policy.patience and fits(job.need, ours):
                return number
        return None

    # What is told and decided

    def tell(self, fact: v.SweepEvent) -> None:
        facts = [fact]
        while facts:
            fact = facts.pop(0)
            if isinstance(fact, v.LeaseRefused):
                self.refuse(fact)
            elif isinstance(fact, v.JobNotStarted):
                del self.running[fact.number]
                self.waiting.add(fact.number)
            for decision in self.scheduler.handle(fact, self.now):
                assert self.end is None, f"{decision} after the end"
                # What follows is told when all that was decided has been performed.
                facts += self.perform(decision)
        self.check()

    def perform(self, decision: v.SweepAction) -> list[v.SweepEvent]:
        if isinstance(decision, v.StartJob):
            refused = self.start(decision)
            if not self.failing:
                return [] if refused is None else [refused]
            blocked: list[v.SweepEvent] = [] if self.blocked else [v.Blocked("no")]
            self.blocked = True
            return [*blocked, v.JobNotStarted(decision.number)]
        if isinstance(decision, v.ComposeNext):
            assert not self.composing
            assert not self.no_more
            assert not self.halted()
            assert len(self.waiting) < max(64, len(self.running))
            self.composing = True
        elif isinstance(decision, v.Retry):
            self.note_retry(decision)
        elif isinstance(decision, v.Settle):
            self.settle(decision)
        elif isinstance(decision, v.FinishSweep):
            assert not self.running
            assert not self.waiting
            assert not self.paused
            self.end = decision
        else:
            assert self.running
            assert self.signum is not None
            self.killed = self.killed or isinstance(decision, v.KillJobs)
        return []

    def start(self, decision: v.StartJob) -> v.SweepEvent | None:
        job, slots = self.jobs[decision.number], slots_of(decision.lease)
        assert not self.halted(), "started after a stop"
        assert not self.blocked or self.failing, "started though nothing can be"
        assert self.parallel()
        assert decision.attempt == job.attempts
        assert count(slots) == job.need
        assert slots <= self.all
        assert not slots & self.held(), "leased twice"
        assert not slots & self.told, "leased what others hold"
        if self.starving() == decision.number:
            # Its turn. Without patience that may be a retry's, which goes before all others.
            self.kept = None
        self.waiting.remove(decision.number)
        for other in self.waiting:
            if self.rank(other) < self.rank(decision.number):
                self.jobs[other].overtaken += 1
        self.running[decision.number] = slots
        if not slots & self.foreign:
            return None
        lost = lease_of(slots & self.foreign)
        return v.LeaseRefused(decision.number, lost.gpus, lost.cpus)

    def refuse(self, fact: v.LeaseRefused) -> None:
        self.told |= {*fact.gpus, *fact.cpus}
        del self.running[fact.number]
        self.waiting.add(fact.number)

    def note_retry(self, decision: v.Retry) -> None:
        job = self.jobs[decision.number]
        assert not self.halted()
        assert decision.attempt == job.attempts
        job.retried[decision.cause] = job.retried.get(decision.cause, 0) + 1
        assert job.retried[decision.cause] <= job.retries.of(decision.cause)
        assert (decision.at is None) == (self.policy.retry_delay == 0)
        if decision.at is None:
            self.waiting.add(decision.number)
        else:
            assert decision.at == self.now + self.policy.retry_delay
            self.paused[decision.number] = decision.at

    def settle(self, decision: v.Settle) -> None:
        number = decision.number
        assert number not in self.final, "settled twice"
        assert number not in self.running
        self.final[number] = decision
        self.waiting.discard(number)
        self.paused.pop(number, None)
        job = self.jobs.get(number)
        if job is None:
            assert decision.state in (J.FAILED, J.NOT_RUN)
            return
        assert decision.attempts == job.attempts
        assert decision.exit_code == job.last
        assert (decision.state is J.SUCCEEDED) == (job.last == 0)
        assert (decision.state is J.NOT_RUN) == (job.attempts == 0)
        if decision.state is J.CANCELLED:
            assert self.signum is not None
            assert (job.last or 0) > 128
        if decision.state is J.NOT_RUN:
            assert self.halted()

    def check(self) -> None:
        """What holds whenever nothing is under way."""
        if self.end is not None or self.halted() or self.blocked:
            self.kept = None
            return
        free = count(self.all - self.told - self.held())
        first = self.starving()
        room = free if first is None else without(free, self.jobs[first].need)
        if self.parallel():
            for number in self.in_order():
                fitting = free if number == first else room
                assert not fits(self.jobs[number].need, fitting), f"{number} could run"
        self.check_patience(first)

    def check_patience(self, first: int | None) -> None:
        """A starving job waits no longer than for what ran when it began to starve."""
        now = {(number, self.jobs[number].attempts) for number in self.running}
        if first is None or self.told:
            self.kept = None
        elif self.kept is None or self.kept[0] != first:
            self.kept = (first, now)
        elif self.parallel():
            assert self.kept[1] & now, f"{first} starves"

    # What may happen

    def answer(self) -> None:
        self.composing = False
        if not self.script:
            self.no_more = True
            self.tell(v.NoMoreJobs())
            return
        fact = self.script.pop(0)
        composed = isinstance(fact, v.JobComposed) and not never_fits(fact.need, count(self.all))
        if isinstance(fact, v.JobComposed) and composed:
            self.jobs[fact.number] = Known(fact.need, self.policy.retries)
            self.waiting.add(fact.number)
        self.tell(fact)
        if not composed:
            assert fact.number in self.final

    def finish_job(self, number: int, exit_code: int, cause: RestartCause | None) -> None:
        del self.running[number]
        job = self.jobs[number]
        job.attempts += 1
        job.overtaken = 0
        job.last = exit_code
        self.tell(v.JobEnded(number, exit_code, cause))
        states = [number in jobs for jobs in (self.final, self.waiting, self.paused, self.running)]
        assert sum(states) == 1

    def signal(self, signum: int) -> None:
        self.signum = signum if self.signum is None else self.signum
        self.tell(v.SweepSignalled(signum, forward=signum != 1))

    def free(self, slots: set[Slot]) -> None:
        self.foreign -= slots
        back, self.told = self.told & slots, self.told - slots
        if back:
            lease = lease_of(back)
            self.tell(v.SlotsFreed(lease.gpus, lease.cpus))

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
            causes: list[RestartCause | None] = [*RESTART_CAUSES, None]
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
            self.signal((1, 2, 15)[which % 3])

    def fail(self, what: int, which: int) -> None:
        """Let something fail that all jobs need, or work again."""
        if what < 92:
            self.failing = not self.blocked
        elif what < 94:
            self.block()
        elif what < 96 and self.blocked:
            self.unblock()
        elif what == 96 and which < 5:
            self.abandon()

    def block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self.tell(v.Blocked("no"))

    def unblock(self) -> None:
        self.failing = self.blocked = False
        self.tell(v.Unblocked())

    def abandon(self) -> None:
        self.failing = self.blocked = False
        self.abandoned = True
        self.tell(v.Abandoned())

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
        summary = self.end.summary
        for state in (J.SUCCEEDED, J.FAILED, J.CANCELLED):
            assert getattr(summary, state.value) == states.count(state)
        assert sum(summary) == total
        assert self.end.signum == self.signum
        if self.signum is not None:
            assert self.end.exit_code == 128 + self.signum
        else:
            bad = summary.failed + summary.not_run
            assert self.end.exit_code == (ExitCode.SWEEP if bad else 0)
            assert not summary.cancelled
            if self.policy.max_failures is None and not self.abandoned:
                assert not summary.not_run


RETRIES = st.builds(Retries, *[st.integers(0, 2)] * 5)
POLICIES = st.builds(
    SweepPolicy,
    max_parallel=st.sampled_from([None, None, 1, 2, 3]),
    max_failures=st.sampled_from([None, None, None, 1, 4]),
    retries=RETRIES,
    retry_delay=st.sampled_from([0.0, 1.0]),
    patience=st.sampled_from([0, 1, 1, 2, 4, 64]),
)


def machine(gpus: int, cpus: int) -> Lease:
    return Lease(tuple(str(number) for number in range(gpus)), tuple(range(cpus)))


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
        kind = dice.random()
        if kind < 0.09:
            script.append(v.JobBroken(number, dice.choice([1, 2])))
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


SEEDS = st.integers(0, 2**32)


@settings(max_examples=700)
@given(SEEDS, POLICIES, st.booleans(), st.booleans())
def test_any_course_of_events_ends_and_keeps_the_promises(
    seed: int, policy: SweepPolicy, foreign: bool, signals: bool
) -> None:
    for part in range(4):
        play(seed + part, policy, foreign=foreign, signals=signals)


@settings(max_examples=300)
@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.integers(0, 7), max_size=60),
)
def test_a_large_job_is_overtaken_no_more_often_than_patience_allows(
    seed: int, half: int, patience: int, needs: list[int]
) -> None:
    # Whoever needs the whole machine can let nobody by without waiting longer for it.
    dice, whole = random.Random(seed), 2 * half
    script: Script = [
        v.JobComposed(number, Need(0, 1 + need % whole)) for number, need in enumerate(needs)
    ]
    world = World(machine(0, whole), SweepPolicy(patience=patience), script)
    most = 0
    while world.end is None:
        if world.composing and dice.random() < 0.8:
            world.answer()
        elif world.running:
            world.finish_job(dice.choice(sorted(world.running)), 0, None)
        elif world.composing:
            world.answer()
        large = [job.overtaken for job in world.jobs.values() if job.need.cpus == whole]
        most = max([most, *large])
    assert most <= patience
    world.check_end(len(script))


@pytest.mark.untraced
def test_ten_thousand_jobs_on_sixty_four_gpus() -> None:
    """Nothing here grows with the number of jobs: what waits is bounded by what runs."""
    dice = random.Random(7)
    scheduler = Scheduler(machine(64, 256))
    facts: list[v.SweepEvent] = [v.BeginSweep()]
    running: list[int] = []
    number = handled = most = 0
    end: v.FinishSweep | None = None
    while end is None:
        if not facts:
            place = dice.randrange(len(running))
            running[place], running[-1] = running[-1], running[place]
            facts.append(v.JobEnded(running.pop(), 0))
        handled += 1
        for decision in scheduler.handle(facts.pop(0), 0.0):
            if isinstance(decision, v.ComposeNext):
                need = Need(dice.choice([1, 1, 2, 4, 8]), dice.randrange(1, 17))
                more = number < 10_000
                facts.append(v.JobComposed(number, need) if more else v.NoMoreJobs())
                number += 1
            elif isinstance(decision, v.StartJob):
                running.append(decision.number)
            elif isinstance(decision, v.FinishSweep):
                end = decision
        most = max(most, len(scheduler.waiting))
    assert end.summary.succeeded == 10_000
    assert most <= 64
    # Begin, composed and ended for each, and that there are no more.
    assert handled == 20_002
