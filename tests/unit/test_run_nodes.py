"""What became of a run of several nodes, from what each has left."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.left import ended_by_launcher, placed

from lllaunch.cluster.rendezvous import Member, Place, Roster, Share
from lllaunch.errors import RendezvousFailed
from lllaunch.run import result as causes
from lllaunch.run.nodes import merged
from lllaunch.run.result import (
    AttemptResult,
    Failed,
    RootCause,
    RunResult,
    Succeeded,
    plain_result,
)
from lllaunch.signal_source import SignalSource
from lllaunch.spec import Nodes
from lllaunch.supervisor import nodes as supervisor_nodes
from lllaunch.supervisor.nodes import NodeGroup, _Broken

T0 = 1_700_000_000_000_000_000
FIRST, SECOND = "node 0 (a)", "node 1 (b)"


def member(number: int, host: str, **more: Any) -> Member:
    return Member(number, host, "net", 1, "plan", directory=f"/r/node_{number}", **more)


def place(*members: Member | None, attempt: int = 0) -> Place:
    share = Share(0, len(members), 0, len(members))
    return Place(0, share, "10.0.0.1", 1, True, Roster.of(members), attempt, 0)


BOTH = place(member(0, "a", token="t"), member(1, "b", token="t"))
ALONE = place(member(0, "a", token="t"), attempt=1)


def attempt(number: int, rank: int, fate: Any, root: RootCause | None = None) -> AttemptResult:
    worker = placed(rank, fate, started_ns=T0, ended_ns=T0 + 5)
    state: Any = "succeeded" if isinstance(fate, Succeeded) else "failed"
    path = f"/r/node_{rank}/attempt_{number}"
    return AttemptResult(number, 0, path, state, T0, T0 + 9, (worker,), root)


def outcome(state: Any, code: int, *attempts: AttemptResult, **more: Any) -> RunResult:
    root = attempts[-1].root_cause if attempts else None
    return RunResult(
        state, code, "/r/node_0", "id", T0, T0 + 9, attempts=attempts, root_cause=root, **more
    )


def left(of: RunResult, attempt: int = 0) -> tuple[int, dict[str, Any]]:
    return attempt, plain_result(of)


def test_a_node_that_had_left_does_not_change_what_became_of_the_run() -> None:
    gone = RootCause(0, None, None, causes.NodeGone(SECOND, "was ended by SIGTERM"), T0)
    own = outcome(
        "succeeded", 0, attempt(0, 0, ended_by_launcher(-15), gone), attempt(1, 0, Succeeded())
    )
    other = outcome("signalled", 143, attempt(0, 1, ended_by_launcher(-15)), signum=15)
    lost = {SECOND: "was ended by SIGTERM"}
    run = merged(own, [BOTH, ALONE], {SECOND: [left(other)]}, lost, "/r")
    assert (run.state, run.exit_code, run.root_cause, run.restarts) == ("succeeded", 0, None, 0)
    assert [(node.name, node.state) for node in run.nodes] == [
        (FIRST, "succeeded"),
        (SECOND, "signalled"),
    ]
    assert [[worker.rank for worker in each.workers] for each in run.attempts] == [[0, 1], [0]]


def test_of_a_node_that_came_again_counts_what_became_of_it_then() -> None:
    back = place(*BOTH.roster.members, attempt=2)
    own = outcome("succeeded", 0, *(attempt(number, 0, Succeeded()) for number in range(3)))
    before = left(outcome("signalled", 143, attempt(0, 1, ended_by_launcher(-15)), signum=15))
    after = left(outcome("succeeded", 0, attempt(2, 1, Succeeded())), 2)
    run = merged(own, [BOTH, ALONE, back], {SECOND: [before, after]}, {}, "/r")
    assert (run.state, run.exit_code) == ("succeeded", 0)
    assert [node.state for node in run.nodes] == ["succeeded"] * 2
    assert [len(each.workers) for each in run.attempts] == [2, 1, 2]
    # it came again, and has left no word of that
    lost = merged(own, [BOTH, ALONE, back], {SECOND: [before]}, {SECOND: "is silent"}, "/r")
    assert [node.state for node in lost.nodes] == ["succeeded", "lost"]
    assert lost.exit_code == 0


def test_the_first_failure_across_nodes_is_told_by_the_node_that_had_it() -> None:
    raised = causes.Raised("ValueError: boom", 1)
    # by its own clock, which is two seconds ahead
    theirs = RootCause(0, 1, 0, raised, T0 + 2_000_000_100, traceback="Traceback")
    second_hand = RootCause(0, 1, None, causes.OnAnotherNode(SECOND, str(raised)), T0 + 100)
    own = outcome("failed", 3, attempt(0, 0, ended_by_launcher(-15), second_hand))
    other = outcome("failed", 3, attempt(0, 1, Failed(cause=raised), theirs))
    number, document = left(other)
    told = {SECOND: [(number, {**document, "clock_offset": 2.0})]}
    run = merged(own, [BOTH], told, {}, "/r")
    root = run.root_cause
    assert root is not None
    assert (root.rank, root.node, root.cause, root.time_ns) == (1, SECOND, raised, T0 + 100)
    assert root.traceback == "Traceback"
    assert (run.state, run.exit_code) == ("failed", 3)


def test_a_node_that_left_no_word_is_lost() -> None:
    gone = RootCause(0, None, None, causes.NodeGone(SECOND, "gave no sign of life"), T0)
    own = outcome("failed", 3, attempt(0, 0, ended_by_launcher(-15), gone))
    run = merged(own, [BOTH], {}, {SECOND: "gave no sign of life"}, "/r")
    assert [(node.state, node.said) for node in run.nodes] == [
        ("failed", ""),
        ("lost", "gave no sign of life"),
    ]
    assert run.root_cause == gone


def group() -> NodeGroup:
    nodes = Nodes(2, 2, 0, "c10d", "127.0.0.1", 29400)
    return NodeGroup(nodes, run_id="r", role="default", nproc=1, plan={}, directory="/r/node_0")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("Failed to recv, got 0 bytes. Connection was likely closed.", "closed the connection"),
        ("Expecting value: line 1 column 1", "cannot be spoken to any more: Expecting value"),
    ],
)
def test_only_a_connection_that_closed_says_that_a_launcher_is_gone(why: str, said: str) -> None:
    nodes = group()
    nodes.place = BOTH
    nodes._watch = SimpleNamespace(at_barrier=False, stop=lambda: None)  # type: ignore[assignment]
    agreed, _ = nodes._broken(_Broken(why))
    assert said in agreed.ended.text  # type: ignore[union-attr]


def test_nobody_waits_for_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the network is cut while nodes meet: no connection is closed."""
    mended = threading.Event()
    cut = SimpleNamespace(connect=lambda *_: mended.wait())
    monkeypatch.setattr(supervisor_nodes, "Rendezvous", lambda *_: cut)
    nodes = Nodes(2, 2, 0, "c10d", "127.0.0.1", 29400, timeout=0.1, join_timeout=0.1)
    group = NodeGroup(nodes, run_id="r", role="default", nproc=1, plan={}, directory="/r/node_0")
    with SignalSource() as signals, pytest.raises(RendezvousFailed, match="has not answered"):
        group.join(signals, 0, 0)
    mended.set()
    group.close(over=True)
