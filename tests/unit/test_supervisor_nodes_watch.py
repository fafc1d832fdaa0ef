"""How nodes learn why an attempt ends: turns of their watches over one store, without threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from lllaunch.cluster.rendezvous import Member, Place, Rendezvous, Roster, Share
from lllaunch.documents import encode_record
from lllaunch.spec import Nodes
from lllaunch.supervisor import nodes as module
from lllaunch.supervisor.machine import (
    AttemptProgress,
    BarrierPassed,
    GroupEnd,
    MembershipChanged,
    NodesAgreed,
    NodesCounted,
)
from lllaunch.supervisor.nodes import _Wanted, _Watch

INTERVAL, PATIENCE = 1.0, 3.0
CONF = {"keep_alive_interval": INTERVAL, "keep_alive_max_attempt": PATIENCE / INTERVAL}
NODES = Nodes(1, 4, 0, "c10d", "host0", 29400, conf=CONF)
FAILED = NodesAgreed("failure", GroupEnd("failed", "node 1 (host1)", 1, "raised ValueError"))


class Store:
    """What is used of torch's; a wait is over at once, since nobody else runs meanwhile."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {"look": b"0"}

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


def _note(heard: list[object], news: object, _: object) -> None:
    heard.append(news)


class Playing:
    """The watches of some nodes, the first of which leads."""

    def __init__(
        self, size: int, monkeypatch: pytest.MonkeyPatch, settles: float | None = None
    ) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.store = Store()
        members = tuple(Member(rank, f"host{rank}", "network", 1, "plan") for rank in range(size))
        self.heard: list[list[Any]] = [[] for _ in members]
        self.nodes = [Rendezvous(NODES, "10.77.0.1", "run", "default", 1) for _ in members]
        self.watches = []
        self.over = [False] * size
        for rank, rendezvous in enumerate(self.nodes):
            share = Share(rank, size, rank, size)
            place = Place(rank, share, "10.77.0.1", 1, False, Roster(members), 0, 0)
            rendezvous.place, rendezvous.round = place, self.store
            monkeypatch.setattr(rendezvous, "are_waiting", lambda: False)
            self.store.set(f"alive/{rank}", "0")
            heard = self.heard[rank]
            self.watches.append(
                _Watch(rendezvous, NODES, settles, partial(_note, heard), abandoned=lambda: False)
            )

    def turns(self, seconds: float, dead: Sequence[int] = ()) -> None:
        """Let nodes take turns for a while, but for those that are dead."""
        end = self.now + seconds
        while self.now < end:
            for rank, watch in enumerate(self.watches):
                if rank not in dead and not self.over[rank]:
                    self.over[rank] = watch.turn(self.store)
            self.now += INTERVAL / 2

    def said(self, *dead: int) -> list[list[Any]]:
        """Return what each node has heard that is not dead."""
        return [each for rank, each in enumerate(self.heard) if rank not in dead]


def end(group: Playing, rank: int, agreed: NodesAgreed) -> None:
    group.nodes[rank].end(encode_record(agreed).decode())


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Playing:
    return Playing(4, monkeypatch)


def test_all_hear_the_first_word_and_that_nobody_is_missing(four: Playing) -> None:
    four.turns(2)
    assert four.said() == [[], [], [], []]
    end(four, 1, FAILED)
    end(four, 2, replace(FAILED, reason="died"))
    four.turns(2)
    assert four.said() == [[FAILED, NodesCounted()]] * 4
    assert four.over == [True] * 4


def test_a_node_that_is_gone_when_another_tells_of_a_failure_is_missed(four: Playing) -> None:
    four.turns(2)
    end(four, 1, FAILED)
    four.turns(PATIENCE - 1, dead=[3])
    # the workers are ended meanwhile, but who is left is not known yet
    assert four.said(3) == [[FAILED]] * 3
    four.turns(2 * PATIENCE, dead=[3])
    assert four.said(3) == [[FAILED, NodesCounted(missing=(3,))]] * 3


def test_when_the_node_that_counts_is_gone_the_others_miss_it(four: Playing) -> None:
    four.turns(2)
    end(four, 1, FAILED)
    four.turns(4 * PATIENCE, dead=[0])
    assert four.said(0) == [[FAILED, NodesCounted(missing=(0,))]] * 3


def test_the_loss_of_a_node_is_told_when_its_patience_is_over(four: Playing) -> None:
    four.turns(2)
    four.turns(PATIENCE - 1, dead=[2])
    assert four.said(2) == [[], [], []]
    four.turns(2 * PATIENCE, dead=[2])
    for first, last in four.said(2):
        assert (first.ended.how, first.gone) == ("lost", (2,))
        assert last == NodesCounted()


def test_after_success_nobody_is_counted(four: Playing) -> None:
    four.nodes[1].end("null")
    four.turns(INTERVAL / 2, dead=[3])
    assert four.said(3) == [[BarrierPassed()]] * 3


def test_who_leads_looks_for_joiners_with_its_signs_of_life(
    four: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: nothing polls once a second."""
    looks = []
    monkeypatch.setattr(four.nodes[0], "are_waiting", lambda: looks.append(four.now))
    monkeypatch.setattr(four.nodes[1], "are_waiting", lambda: True)
    for watch in four.watches:
        watch._interval = 10.0
    four.turns(20)
    assert [later - before for before, later in pairwise(looks)] == [5.0] * 3
    monkeypatch.setattr(four.nodes[0], "are_waiting", lambda: True)
    four.turns(10)
    assert four.said() == [[MembershipChanged()], [], [], []]


# How far an attempt came


SETTLES = 20.0


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Playing:
    return Playing(3, monkeypatch, SETTLES)


def say(group: Playing, rank: int, step: float | None, *, saved: bool = False) -> None:
    progress = AttemptProgress(step, saved, 100 + rank)
    group.nodes[rank].put("end", json.dumps(asdict(progress)))


def test_all_are_counted_when_all_have_said_how_far_it_came(three: Playing) -> None:
    end(three, 1, FAILED)
    three.turns(2)
    say(three, 0, None)
    say(three, 2, 7.0)
    three.turns(2)
    assert three.said() == [[FAILED]] * 3
    say(three, 1, 5.0, saved=True)
    three.turns(2)
    farthest = AttemptProgress(7.0, checkpoint_changed=True, time_ns=102)
    assert three.said() == [[FAILED, NodesCounted(progress=farthest)]] * 3
    assert three.over == [True] * 3


def test_a_node_that_says_nothing_is_waited_for_no_longer_than_it_may_take(three: Playing) -> None:
    end(three, 1, FAILED)
    say(three, 0, 3.0)
    say(three, 1, 4.0)
    three.turns(SETTLES - 2)
    assert three.said() == [[FAILED]] * 3
    three.turns(6)
    farthest = AttemptProgress(4.0, checkpoint_changed=False, time_ns=101)
    assert three.said() == [[FAILED, NodesCounted(progress=farthest)]] * 3


def _ask(playing: Playing, number: int, group_rank: int) -> None:
    """Let a node ask all where their workers stand."""
    playing.store.set("look", json.dumps([number, group_rank, f"request {number}"]))


def test_the_others_hear_that_somebody_wants_to_know_where_workers_stand(four: Playing) -> None:
    four.turns(2)
    _ask(four, 1, 2)
    four.turns(1)
    wanted = _Wanted(1, b"request 1")
    assert four.said() == [[wanted], [wanted], [], [wanted]]
    # once
    four.turns(2)
    _ask(four, 2, 0)
    four.turns(1)
    assert four.heard[0] == [wanted]
    assert four.heard[3] == [wanted, _Wanted(2, b"request 2")]
