"""A worker group that is one of several: the machine with events of other nodes."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import AttemptProgress, Exited, GroupEnd, OrphansGone, SpawnerGone
from lllaunch.spec import RestartPolicy
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.machine import SIGTERM, GroupState, Machine, WorkerState
from lllaunch.watchdog.findings import FoundElsewhere, TimedOut, TimerExpired
from lllaunch.watchdog.stacks.frames import Blame

TIMER = TimerExpired(rank=1, pid=77, scope="train.py#3", after=10.0, signum=9)
HANG = v.WatchdogFired(TIMER, "hang", asked=v.SignalProcess(1, 77, 9))
ELSEWHERE = FoundElsewhere("node 1 (b)", "hung")
LOST = GroupEnd("lost", "node 1 (b)", 1, "gave no sign of life for 15 s")


def agreed(reason: v.Reason = "failure", *, here: bool = False) -> v.Event:
    return v.NodesAgreed(reason, GroupEnd("failed", "node 1 (b)", 1, here=here))


def end_of(rank: int, exitcode: int = 0) -> Exited:
    return Exited(rank, 100 + rank, exitcode, 1)


def running(max_restarts: int = 0, policy: RestartPolicy | None = None) -> Machine:
    machine = Machine(max_restarts, policy=policy, alone=False)
    assert machine.handle(v.Begin()) == (v.StartWorkers(0, 0),)
    assert machine.handle(v.GroupStarted(frozenset({0, 1}), 0)) == ()
    return machine


def gone(machine: Machine, exitcode: int = -SIGTERM) -> v.Actions:
    for rank in sorted(machine.alive):
        machine.handle(end_of(rank, exitcode))
    return machine.handle(OrphansGone())


def counted(machine: Machine, lost: GroupEnd | None = None, *, again: bool = True) -> v.Actions:
    """All workers end, and it becomes known which nodes are left."""
    assert gone(machine) == ()
    return machine.handle(v.NodesCounted(lost, again))


def test_the_others_are_told_of_a_failure_before_anything_is_ended() -> None:
    machine = running()
    told, *rest = machine.handle(end_of(0, 1))
    assert told == v.TellNodes("failure")
    assert rest == [v.SignalWorkers(SIGTERM, "failure"), v.StartGrace()]
    # once
    assert machine.handle(end_of(1, 1)) == (v.CleanUp(),)


def test_nothing_is_decided_before_all_have_agreed() -> None:
    machine = running(1)
    machine.handle(end_of(0, 1))
    assert gone(machine) == ()
    assert machine.state is GroupState.AGREEING
    assert machine.handle(agreed(here=True)) == ()
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "failure"),)


def test_what_was_agreed_before_the_end_decides_at_the_end() -> None:
    machine = running(1)
    machine.handle(end_of(0, 1))
    assert machine.handle(agreed("oom")) == ()
    assert machine.handle(v.NodesCounted()) == ()
    assert gone(machine) == (v.StartWorkers(1, 1, "oom"),)


def test_a_worker_that_fails_since_a_node_is_lost_costs_no_restart_if_enough_are_left() -> None:
    machine = running()
    machine.handle(end_of(0, 1))
    machine.handle(agreed(here=True))
    assert counted(machine, LOST) == (v.StartWorkers(1, 0, "node"),)


def test_a_worker_that_fails_since_a_node_is_lost_fails_for_that() -> None:
    machine = running()
    machine.handle(end_of(0, 1))
    machine.handle(agreed(here=True))
    assert counted(machine, LOST, again=False) == (v.Finish(WorkerState.FAILED, "node"),)


def test_the_first_word_holds() -> None:
    machine = running(1, RestartPolicy(on=frozenset({"hang"})))
    machine.handle(agreed("failure"))
    machine.handle(agreed("hang"))
    assert counted(machine) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_a_failure_elsewhere_ends_the_workers_here_and_counts() -> None:
    machine = running(1)
    ends = machine.handle(agreed())
    assert ends == (v.SignalWorkers(SIGTERM, "failure"), v.StartGrace())
    assert counted(machine) == (v.StartWorkers(1, 1, "failure"),)
    machine.handle(v.GroupStarted(frozenset({0, 1}), 1))
    machine.handle(agreed())
    assert counted(machine) == (v.Finish(WorkerState.FAILED, "failure"),)


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_node_that_is_lost_costs_no_restart_if_enough_are_left(restarts: int) -> None:
    machine = running(restarts)
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine) == (v.StartWorkers(1, 0, "node"),)


def test_a_node_that_is_lost_costs_a_restart_if_too_few_are_left() -> None:
    machine = running(1)
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine, again=False) == (v.StartWorkers(1, 1, "node"),)
    machine.handle(v.GroupStarted(frozenset({0, 1}), 1))
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine, again=False) == (v.Finish(WorkerState.FAILED, "node"),)


def test_who_has_succeeded_starts_again_with_the_others() -> None:
    machine = running(1)
    for rank in (0, 1):
        machine.handle(end_of(rank))
    assert machine.handle(OrphansGone()) == (v.WaitForOthers(),)
    assert machine.handle(agreed()) == ()
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "failure"),)


def test_who_has_succeeded_fails_with_the_others() -> None:
    machine = running()
    for rank in (0, 1):
        machine.handle(end_of(rank))
    machine.handle(OrphansGone())
    machine.handle(agreed())
    assert machine.handle(v.NodesCounted()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_joiners_are_told_to_all_and_cost_no_restart() -> None:
    machine = running()
    assert machine.handle(v.MembershipChanged())[0] == v.TellNodes("membership")
    machine.handle(agreed("membership"))
    assert counted(machine) == (v.StartWorkers(1, 0, "membership"),)


def test_a_signal_here_is_told_and_waits_for_nobody() -> None:
    machine = running(3)
    assert machine.handle(v.SignalReceived(2))[0] == v.TellNodes("signal", 2)
    assert gone(machine) == (v.Finish(WorkerState.FAILED, "signal", 2),)


def test_a_lost_spawner_waits_for_what_all_agree_on() -> None:
    machine = running()
    assert machine.handle(SpawnerGone(7, -9)) == (v.TellNodes("spawner"),)
    machine.handle(agreed("spawner", here=True))
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "spawner"),)


def test_a_finding_is_told_first_and_stacks_of_all_are_waited_for() -> None:
    machine = running()
    told, take = machine.handle(HANG)
    assert told == v.TellNodes("hang", finding=TIMER)
    assert take == v.TakeStacks(frozenset({0, 1}), TIMER)
    hangs = GroupEnd("failed", "node 0 (a)", 0, here=True, finding=ELSEWHERE)
    assert machine.handle(v.NodesAgreed("hang", hangs)) == ()
    assert machine.handle(v.StacksTaken((), Blame(), TIMER)) == (v.TellStacks((), TIMER),)
    asked, *terminate = machine.handle(v.GroupStacks(Blame((5,), ())))
    assert asked == HANG.asked
    assert terminate == [v.SignalWorkers(SIGTERM, "hang"), v.StartGrace()]


def test_a_finding_elsewhere_takes_stacks_here_before_anything_is_ended() -> None:
    machine = running()
    hangs = GroupEnd("failed", "node 1 (b)", 1, finding=ELSEWHERE)
    assert machine.handle(v.NodesAgreed("hang", hangs)) == (
        v.TakeStacks(frozenset({0, 1}), ELSEWHERE),
    )
    assert machine.handle(v.StacksTaken((), Blame(), ELSEWHERE)) == (v.TellStacks((), ELSEWHERE),)
    assert machine.handle(v.GroupStacks())[0] == v.SignalWorkers(SIGTERM, "hang")
    assert counted(machine) == (v.Finish(WorkerState.FAILED, "hang"),)


def test_where_the_time_of_the_run_is_over_on_one_node_nothing_is_started_again_on_any() -> None:
    over = v.WatchdogFired(TimedOut(60.0, "run"), "timeout", whole_run=True)
    machine = running(3)
    assert machine.handle(over)[0] == v.TellNodes("timeout", finding=over.finding, final=True)
    other = running(3)
    hangs = GroupEnd("failed", "node 1 (b)", 1, finding=ELSEWHERE)
    other.handle(v.NodesAgreed("timeout", hangs, final=True))
    other.handle(v.StacksTaken((), Blame(), ELSEWHERE))
    other.handle(v.GroupStacks())
    assert counted(other) == (v.Finish(WorkerState.FAILED, "timeout"),)


def test_stacks_that_come_late_change_nothing() -> None:
    machine = running()
    machine.handle(agreed())
    assert machine.handle(v.GroupStacks(Blame((1,), ()))) == ()


def test_who_comes_later_counts_as_the_others_do() -> None:
    machine = Machine(2, alone=False)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset({0, 1}), 2))
    assert machine.restart_count == 2
    machine.handle(agreed())
    assert counted(machine) == (v.Finish(WorkerState.FAILED, "failure"),)


class Group:
    """Nodes whose machines hear each other through one list, in an order that chance decides."""

    def __init__(self, seed: int, nodes: int, restarts: int, policy: RestartPolicy) -> None:
        self.random = random.Random(seed)
        self.machines = [Machine(restarts, policy=policy, alone=False) for _ in range(nodes)]
        self.pending: list[deque[v.Event]] = [deque([v.Begin()]) for _ in range(nodes)]
        self.attempts: list[list[v.StartWorkers]] = [[] for _ in range(nodes)]
        self.ends: dict[int, v.Finish] = {}
        self.joined: set[int] = set()
        self.arrived: set[int] = set()
        self.word: v.Reason | None = None
        self.round = 0

    def play(self) -> None:
        """Go on until all have finished."""
        for _ in range(10_000):
            if len(self.ends) == len(self.machines):
                return
            ready = [n for n, events in enumerate(self.pending) if events and n not in self.ends]
            assert ready, "they wait for each other for ever"
            node = self.random.choice(ready)
            for action in self.machines[node].handle(self.pending[node].popleft()):
                self.perform(node, action)
        raise AssertionError("they never come to an end")

    def perform(self, node: int, action: v.Action) -> None:
        pending = self.pending[node]
        if isinstance(action, v.StartWorkers):
            self.attempts[node].append(action)
            self.joined.add(node)
            if len(self.joined) == len(self.machines):
                self.begin()
        elif isinstance(action, v.TellNodes):
            self.tell(action.reason)
        elif isinstance(action, v.WaitForOthers):
            self.arrived.add(node)
            if len(self.arrived) == len(self.machines) and self.word is None:
                for events in self.pending:
                    events.append(v.BarrierPassed())
        elif isinstance(action, v.Finish):
            self.ends[node] = action
        elif isinstance(action, v.CleanUp):
            # All workers end by themselves, sooner or later.
            pending.extend([self.progress(), OrphansGone()])

    def begin(self) -> None:
        """All have come: workers run, and some of them will fail."""
        self.joined.clear()
        self.arrived.clear()
        self.word = None
        for events in self.pending:
            events.clear()
            codes = [self.random.choice([0, 0, 0, 1]) for _ in range(2)]
            restarts = max(a[-1].restart_count for a in self.attempts)
            history = self.attempts[0][-1].history
            events.append(v.GroupStarted(frozenset({0, 1}), restarts, history=history))
            events.extend(end_of(rank, code) for rank, code in enumerate(codes))

    def tell(self, reason: v.Reason) -> None:
        if self.word is None:
            self.word = reason
            self.round += 1
            progress = self.progress()
            for events in self.pending:
                # nothing is heard before the attempt has begun
                first = bool(events) and isinstance(events[0], v.GroupStarted)
                place = self.random.randint(int(first), len(events))
                events.insert(place, agreed(reason))
                counted = v.NodesCounted(progress=progress)
                events.insert(self.random.randint(place + 1, len(events)), counted)

    def progress(self) -> AttemptProgress:
        """What one node has seen: none sees the same as another."""
        step = self.random.choice([None, 1.0, 2.0, 3.0])
        return AttemptProgress(step, self.random.random() < 0.2, self.round)


POLICIES = st.builds(
    RestartPolicy,
    window=st.sampled_from([None, 2e-9]),
    reset_on=st.sampled_from([None, "progress"]),
    # where a window or progress gives restarts back it would go on for long
    max_without_progress=st.sampled_from([1, 2, 3]),
)


@given(
    st.integers(0, 10**6), st.integers(2, 5), st.integers(0, 3), st.just(RestartPolicy()) | POLICIES
)
def test_nodes_always_end_alike(
    seed: int, nodes: int, restarts: int, policy: RestartPolicy
) -> None:
    group = Group(seed, nodes, restarts, policy)
    group.play()
    ends = {(end.state, end.reason, end.no_progress) for end in group.ends.values()}
    assert len(ends) == 1
    assert len({tuple(a.restart_count for a in each) for each in group.attempts}) == 1
