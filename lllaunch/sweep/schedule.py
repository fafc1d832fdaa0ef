"""Which job of a sweep runs when, and on what: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Scheduler.handle` takes a fact and returns
the decisions that follow; the launcher performs them and feeds back what happens. The tables at the
end say for every state and fact what is done, or that it cannot come.

Which job is next stands in `lllaunch.sweep.waiting`, and what it gets in `lllaunch.sweep.pool`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lllaunch.sweep.vocabulary as v
from lllaunch.sweep.actions import Sweep


class ImpossibleFact(Exception):
    """A fact came when it cannot come: an error in the launcher."""


class Scheduler(Sweep):
    """A sweep from its first job to its end; arguments as for `Sweep`."""

    def handle(self, fact: v.Fact, now: float) -> v.Decisions:
        """Take note of a fact; the decisions that follow, in order.

        Args:
            fact: what happened.
            now: the time on a clock that never goes back, seconds.

        Raises:
            ImpossibleFact: it cannot come in this state, or of this job.
        """
        if self.state is v.SweepState.FINISHED:
            # Late news: a job that was being composed, another signal.
            return ()
        action = TRANSITIONS[self.state].get(type(fact))
        if action is None:
            raise ImpossibleFact(f"{fact} in state {self.state.value}")
        self.now = now
        if action is not Sweep.ignore:
            self._check(fact)
        return action(self, fact)

    def _check(self, fact: v.Fact) -> None:
        """A fact must be about what there is."""
        if type(fact) in _OF_COMPOSING and not self.composing:
            raise ImpossibleFact(f"{fact}, which was not asked for")
        if isinstance(fact, (v.JobComposed, v.JobBroken)):
            if any(fact.number in jobs for jobs in (self.running, self.paused, self.waiting)):
                raise ImpossibleFact(f"{fact} is about another job than the one of that number")
        elif isinstance(fact, (v.JobEnded, v.LeaseRefused, v.NotStarted)):
            if fact.number not in self.running:
                raise ImpossibleFact(f"{fact}, which does not run")
        elif isinstance(fact, v.RetryDue) and fact.number not in self.paused:
            raise ImpossibleFact(f"{fact}, which is not to be tried again")
        if isinstance(fact, v.LeaseRefused):
            lease = self.running[fact.number].lease
            inside = {*fact.gpus} <= {*lease.gpus} and {*fact.cpus} <= {*lease.cpus}
            # Without a slot that is out of the pool the job would start again at once, for ever.
            if not inside or not (fact.gpus or fact.cpus):
                raise ImpossibleFact(f"{fact} does not name slots of {lease}")


# mypy cannot know that an action gets the fact it stands for in the table.
Action = Callable[[Any, Any], v.Decisions]

# While nothing more is started. A job that cannot run has failed even so.
_ENDING: dict[type, Action] = {
    v.JobComposed: Sweep.composed_too_late,
    v.JobBroken: Sweep.broken,
    v.NoMoreJobs: Sweep.no_more,
    v.LeaseRefused: Sweep.refused_too_late,
    v.NotStarted: Sweep.not_started_too_late,
    v.Blocked: Sweep.ignore,
    v.Unblocked: Sweep.ignore,
    v.Abandoned: Sweep.ignore,
    v.SlotsFreed: Sweep.ignore,
    # Its moment was set before.
    v.RetryDue: Sweep.ignore,
}

# What is done for every fact in every state.
TRANSITIONS: dict[v.SweepState, dict[type, Action]] = {
    v.SweepState.NEW: {
        v.Begin: Sweep.begin,
        v.SignalReceived: Sweep.cancel,
    },
    v.SweepState.PACKING: {
        v.JobComposed: Sweep.composed,
        v.JobBroken: Sweep.broken,
        v.NoMoreJobs: Sweep.no_more,
        v.LeaseRefused: Sweep.refused,
        v.SlotsFreed: Sweep.freed,
        v.JobEnded: Sweep.ended,
        v.RetryDue: Sweep.retry,
        v.Blocked: Sweep.block,
        v.Abandoned: Sweep.abandon,
        v.SignalReceived: Sweep.cancel,
    },
    # As above, but nothing follows that would start something (`Sweep._go_on`).
    v.SweepState.BLOCKED: {
        v.JobComposed: Sweep.composed,
        v.JobBroken: Sweep.broken,
        v.NoMoreJobs: Sweep.no_more,
        v.LeaseRefused: Sweep.refused,
        v.NotStarted: Sweep.not_started,
        v.SlotsFreed: Sweep.freed,
        v.JobEnded: Sweep.ended,
        v.RetryDue: Sweep.retry,
        v.Unblocked: Sweep.unblock,
        v.Abandoned: Sweep.abandon,
        v.SignalReceived: Sweep.cancel,
    },
    v.SweepState.DRAINING: {
        **_ENDING,
        v.JobEnded: Sweep.ended_while_draining,
        v.SignalReceived: Sweep.cancel,
    },
    v.SweepState.CANCELLING: {
        **_ENDING,
        v.JobBroken: Sweep.broken_while_cancelled,
        v.JobEnded: Sweep.ended_while_cancelled,
        v.SignalReceived: Sweep.kill,
    },
    v.SweepState.KILLING: {
        **_ENDING,
        v.JobBroken: Sweep.broken_while_cancelled,
        v.JobEnded: Sweep.ended_while_cancelled,
        v.SignalReceived: Sweep.kill,
    },
    # Terminal: after the decision to finish every fact is late news.
    v.SweepState.FINISHED: {},
}

_OF_COMPOSING: frozenset[type] = frozenset({v.JobComposed, v.JobBroken, v.NoMoreJobs})
_OF_JOBS: frozenset[type] = frozenset(
    {v.LeaseRefused, v.SlotsFreed, v.NotStarted, v.JobEnded, v.RetryDue}
)
_OF_BLOCKS: frozenset[type] = frozenset({v.Blocked, v.Unblocked, v.Abandoned})

# The rest, and why it cannot come.
IMPOSSIBLE: dict[v.SweepState, frozenset[type]] = {
    # Nothing was asked for or started.
    v.SweepState.NEW: _OF_COMPOSING | _OF_JOBS | _OF_BLOCKS,
    # A sweep begins once. What was not started for a failure would be started again at once.
    v.SweepState.PACKING: frozenset({v.Begin, v.NotStarted, v.Unblocked}),
    # It is blocked once, whatever else fails.
    v.SweepState.BLOCKED: frozenset({v.Begin, v.Blocked}),
    v.SweepState.DRAINING: frozenset({v.Begin}),
    v.SweepState.CANCELLING: frozenset({v.Begin}),
    v.SweepState.KILLING: frozenset({v.Begin}),
    v.SweepState.FINISHED: frozenset(),
}
