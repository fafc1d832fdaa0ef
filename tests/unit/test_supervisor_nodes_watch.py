"""How nodes learn why an attempt ends: turns of their watches over one store, without threads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from lllaunch.cluster.membership import Member, Place, Roster, Share
from lllaunch.cluster.rendezvous import Rendezvous
from lllaunch.spec import Nodes
from lllaunch.supervisor import nodes as module
from lllaunch.supervisor.nodes import _Watch

INTERVAL, PATIENCE = 1.0, 3.0
NODES = Nodes(1, 4, 0, "c10d", "host0", 29400)
FAILED = {"how": "failed", "reason": "failure", "group_rank": 1, "text": "raised ValueError"}


class Store:
    """What is used of torch's; a wait is over at once, since nobody else runs meanwhile."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.keys[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.keys[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.keys[key] for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.keys for key in keys)

    def wait(self, keys: Sequence[str], _: timedelta) -> None:
        if not self.check(keys):
            raise RuntimeError("wait timeout after 500ms")

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        assert expected == ""
        return self.keys.setdefault(key, value.encode())


class Playing:
    """The watches of some nodes, the first of which leads."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.store = Store()
        members = tuple(
            Member(rank, f"host{rank}", "network", f"10.77.0.{rank + 1}", 1, "plan")
            for rank in range(size)
        )
        self.heard: list[list[Any]] = [[] for _ in members]
        self.nodes = [Rendezvous(NODES, "10.77.0.1", "run", "default", 1) for _ in members]
        self.watches = []
        for rank, rendezvous in enumerate(self.nodes):
            share = Share(rank, size, rank, size)
            place = Place(rank, share, "10.77.0.1", 1, False, Roster(members), 0, 0)
            rendezvous.place, rendezvous._round = place, self.store
            monkeypatch.setattr(rendezvous, "are_waiting", lambda: False)
            self.store.set(f"alive/{rank}", "0")
            wake = self.heard[rank].append
            self.watches.append(
                _Watch(rendezvous, place, NODES, INTERVAL, PATIENCE, wake, lambda: False)
            )

    def turns(self, seconds: float, dead: Sequence[int] = ()) -> None:
        """Let nodes take turns for a while, but for those that are dead."""
        end = self.now + seconds
        while self.now < end:
            for rank, watch in enumerate(self.watches):
                if rank not in dead and not self.heard[rank]:
                    watch.turn(self.store)
            self.now += INTERVAL / 2

    def said(self, *dead: int) -> list[Any]:
        """Return why the attempt ended, as each node has heard it that is not dead."""
        return [each[0] for rank, each in enumerate(self.heard) if rank not in dead and each]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Playing:
    return Playing(4, monkeypatch)


def test_a_failure_holds_as_soon_as_all_have_heard_of_it(four: Playing) -> None:
    four.turns(2)
    assert four.said() == []
    four.nodes[1].end(FAILED)
    four.nodes[2].end({**FAILED, "group_rank": 2})
    four.turns(2)
    assert four.said() == [FAILED] * 4


def test_a_failure_beside_the_loss_of_a_node_is_that_loss(four: Playing) -> None:
    four.turns(2)
    four.nodes[1].end(FAILED)
    four.turns(PATIENCE - 1, dead=[3])
    assert four.said() == []
    four.turns(PATIENCE, dead=[3])
    said = four.said(3)
    assert len(said) == 3
    assert {each["how"] for each in said} == {"lost"}
    assert said[0]["gone"] == [3]


def test_the_loss_of_the_node_that_settles_is_noticed_by_the_others(four: Playing) -> None:
    four.turns(2)
    four.nodes[1].end(FAILED)
    four.turns(2 * PATIENCE, dead=[0])
    said = four.said(0)
    assert len(said) == 3
    assert all(each["gone"] == [0] for each in said)


def test_a_node_that_has_told_of_its_failure_and_left_is_not_lost(four: Playing) -> None:
    four.turns(2)
    failed = {**FAILED, "group_rank": 0}
    four.nodes[0].end(failed)
    four.turns(2 * PATIENCE, dead=[0])
    assert four.said(0) == [failed] * 3


def test_a_node_that_leaves_is_stronger_than_a_failure_in_question(four: Playing) -> None:
    four.turns(2)
    four.nodes[1].end(FAILED)
    left = {"how": "left", "reason": "node", "group_rank": 2, "gone": [2]}
    four.nodes[2].end(left)
    four.turns(2, dead=[2])
    assert four.said(2) == [left] * 3


@pytest.mark.parametrize(
    "document",
    [
        {"how": "succeeded"},
        {"how": "joined", "reason": "membership", "group_rank": 0},
        {"how": "left", "reason": "node", "group_rank": 1, "gone": [1]},
        {**FAILED, "reason": "hang", "finding": True},
    ],
)
def test_other_words_hold_at_once(four: Playing, document: dict[str, Any]) -> None:
    four.nodes[1].end(document)
    four.turns(INTERVAL / 2, dead=[3])
    assert four.said(3) == [document] * 3
