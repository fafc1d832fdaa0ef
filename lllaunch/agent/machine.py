"""The life of a worker group: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Machine.handle` takes a fact and returns the
decisions that follow; the agent performs them and feeds back what happens. The tables at the end
say for every state and fact what is done, or that it cannot come.

What the watchdog finds ends a group as a failure does, after its stacks were taken; while that goes
on the group still runs. A wait before a restart belongs to the state STOPPED.

How an attempt ends stands in a table of its own, `lllaunch.agent.ladder`. What SIGKILL does not end
within the grace period (uninterruptible sleep) is abandoned, and nothing is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lllaunch.agent.vocabulary as v
from lllaunch.agent.actions import Group
from lllaunch.agent.states import WorkerState


class ImpossibleFact(Exception):
    """A fact came in a state in which it cannot come: an error in the agent."""


class Machine(Group):
    """A worker group from its first attempt to its end; arguments as for `Group`."""

    def handle(self, fact: v.Fact) -> v.Decisions:
        """Take note of a fact; the decisions that follow, in order.

        Raises:
            ImpossibleFact: it cannot come in this state.
        """
        if self.finished:
            # Late news: a worker's end that was on its way, a second signal.
            return ()
        action = TRANSITIONS[self.state].get(type(fact))
        if action is None:
            raise ImpossibleFact(f"{fact} in state {self.state.value}")
        return action(self, fact)


# mypy cannot know that an action gets the fact it stands for in the table.
Action = Callable[[Any, Any], v.Decisions]

# What is done for every fact in every state.
TRANSITIONS: dict[WorkerState, dict[type, Action]] = {
    WorkerState.INIT: {
        v.Begin: Group.begin,
        v.GroupStarted: Group.run,
        v.SignalReceived: Group.finish_by_signal,
        v.StacksAsked: Group.ignore,
        v.GraceExpired: Group.ignore,
    },
    WorkerState.HEALTHY: {
        v.WorkerEnded: Group.ended,
        v.SpawnerLost: Group.lose_all,
        v.PreloadLost: Group.give_up,
        v.SignalReceived: Group.end_by_signal,
        v.StacksAsked: Group.look,
        v.GraceExpired: Group.ignore,
        v.MembershipChanged: Group.regroup,
        v.WorkersStuck: Group.stuck,
        v.WatchdogFired: Group.fire,
        v.StacksTaken: Group.end_by_watchdog,
        v.MonitorLost: Group.lose_track,
    },
    WorkerState.UNHEALTHY: {
        v.WorkerEnded: Group.ended_while_ending,
        v.SpawnerLost: Group.lose_all,
        v.PreloadLost: Group.give_up,
        v.SignalReceived: Group.end_by_signal,
        v.StacksAsked: Group.look,
        v.GraceExpired: Group.grace_over,
        v.MembershipChanged: Group.ignore,
        v.WorkersStuck: Group.ignore,
        v.WatchdogFired: Group.note_fired,
        v.StacksTaken: Group.stop_looking,
        v.MonitorLost: Group.lose_track,
    },
    WorkerState.STOPPED: {
        v.LeftoversGone: Group.swept,
        v.LeftoversStuck: Group.not_swept,
        v.SpawnerLost: Group.spawner_lost_while_stopped,
        v.SignalReceived: Group.signal_while_swept,
        v.StacksAsked: Group.ignore,
        v.GraceExpired: Group.ignore,
        v.MembershipChanged: Group.ignore,
        v.WorkersStuck: Group.ignore,
        v.WatchdogFired: Group.note_fired,
        v.StacksTaken: Group.ignore,
        v.PauseOver: Group.start_again,
    },
    WorkerState.SUCCEEDED: {
        v.LeftoversGone: Group.wait_for_others,
        v.LeftoversStuck: Group.wait_for_others,
        v.SpawnerLost: Group.wait_for_others,
        v.BarrierPassed: Group.succeed,
        v.SignalReceived: Group.signal_after_success,
        v.StacksAsked: Group.ignore,
        v.GraceExpired: Group.ignore,
        v.MembershipChanged: Group.ignore,
        v.WorkersStuck: Group.ignore,
        v.WatchdogFired: Group.ignore,
        v.StacksTaken: Group.ignore,
    },
    # Terminal: after the decision to finish every fact is late news.
    WorkerState.FAILED: {},
    WorkerState.UNKNOWN: {},
}

_OF_STARTS: frozenset[type] = frozenset({v.Begin, v.GroupStarted})
_OF_SWEEPS: frozenset[type] = frozenset({v.LeftoversGone, v.LeftoversStuck})
_OF_WORKERS: frozenset[type] = frozenset({v.WorkerEnded, v.PreloadLost, v.MonitorLost})

# The rest, and why it cannot come.
IMPOSSIBLE: dict[WorkerState, frozenset[type]] = {
    # Nothing has been started that could end or be watched; nothing was asked for.
    WorkerState.INIT: _OF_WORKERS
    | _OF_SWEEPS
    | {v.SpawnerLost, v.MembershipChanged, v.BarrierPassed, v.WorkersStuck}
    | {v.WatchdogFired, v.StacksTaken, v.PauseOver},
    # Workers live: neither a start, nor a sweep, nor a barrier, nor a wait is under way.
    WorkerState.HEALTHY: _OF_STARTS | _OF_SWEEPS | {v.BarrierPassed, v.PauseOver},
    WorkerState.UNHEALTHY: _OF_STARTS | _OF_SWEEPS | {v.BarrierPassed, v.PauseOver},
    # All workers have ended, and whoever ends first cannot have failed to preload.
    WorkerState.STOPPED: _OF_STARTS | _OF_WORKERS | {v.BarrierPassed},
    # Nothing is started after a success.
    WorkerState.SUCCEEDED: _OF_STARTS | _OF_WORKERS | {v.PauseOver},
    WorkerState.FAILED: frozenset(),
    WorkerState.UNKNOWN: frozenset(),
}
