"""Runs of a few nodes on which anything happens: what must hold of them holds, at every step.

`benchmarks/simulation.py` plays them: lllaunch's own machine, supervisor and protocol, over a
network, a store and workers that chance delays, ends and cuts off.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.simulation import FAULTS, PHASES, Scenario, World, random_scenario
from lllaunch.cluster.rendezvous import keep_alive, torchs_keep_alive

SEEDS = 40


def play(scenario: Scenario) -> World:
    world = World(scenario)
    world.play()
    return world


# In parts, so that they can be shared among processes.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_all_nodes_agree_and_none_waits_for_ever_whatever_happens(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        play(random_scenario(seed))


@pytest.mark.parametrize("kind", FAULTS)
def test_after_anything_that_can_be_survived_all_end_well(kind: str) -> None:
    world = play(Scenario(6, 7, spare=1, nproc=2, faults=((45.0, kind),), clean_at=150.0))
    ended = world.states()
    if kind == "first lost":
        # it takes the store along
        assert "SUCCEEDED" not in ended
        return
    assert ended["SUCCEEDED"] >= 5, ended
    if kind not in {"cut", "stopped"}:
        assert [each.kind for each in world.recoveries] == [kind]


def test_what_a_node_asks_of_the_store_does_not_grow_with_the_nodes() -> None:
    each = []
    for nodes in (6, 24):
        faults = ((45.0, "fails"), (100.0, "hangs"))
        world = play(Scenario(nodes, 1, spare=1, nproc=2, faults=faults, clean_at=150.0))
        assert set(world.server.load) == set(PHASES)
        each.append(world.load.operations / nodes)
    few, many = each
    assert many <= few


def test_many_nodes_give_signs_of_life_less_often_unless_the_config_says_otherwise() -> None:
    settings = Scenario(1000, 0).settings(0)
    for nodes, seconds in ((2, 5.0), (125, 5.0), (126, 6.0), (1000, 40.0)):
        assert torchs_keep_alive(replace(settings, max_nodes=nodes)) == (seconds, 3.0)
    assert keep_alive(settings) == (5.0, 3.0)
    conf = {"keep_alive_interval": 7, "keep_alive_max_attempt": 5}
    for told in (keep_alive, torchs_keep_alive):
        assert told(replace(settings, conf=conf)) == (7.0, 5.0)
