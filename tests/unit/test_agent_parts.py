"""Parts of the agent that need no processes: environment, ranks, ports, deadlines, kernel sleep."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.agent import LocalElasticAgent, WorkerSpec
from lllaunch.agent.local_elastic_agent import substitute_local_rank
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.supervisor.environ import (
    WorkerContext,
    candidates,
    contract,
    virtual_rank,
)
from lllaunch.watchdog.sampling import TIMEOUT_VARIABLE, Usage, kernel_sleep
from lllaunch.watchdog.stall import KernelDetector


def place(**changes: Any) -> WorkerContext:
    given: dict[str, Any] = {
        "local_rank": 1,
        "rank": 3,
        "group_rank": 1,
        "role_rank": 3,
        "role_name": "trainer",
        "local_world_size": 2,
        "world_size": 4,
        "group_world_size": 2,
        "role_world_size": 4,
        "master_addr": "host",
        "master_port": 1234,
        "restart_count": 1,
        "max_restarts": 5,
        "run_id": "r",
    }
    return WorkerContext(**(given | changes))


def test_the_contract_is_torchruns() -> None:
    assert contract(place(), {}) == {
        "LOCAL_RANK": "1",
        "RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "OMP_NUM_THREADS": "1",
    }


def test_what_the_user_set_is_kept_and_one_worker_keeps_its_threads() -> None:
    outer = {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    env = contract(place(), outer)
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "OMP_NUM_THREADS" not in contract(place(local_world_size=1), {})


@pytest.mark.parametrize(
    ("outer", "device"),
    [
        ({}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "4, 6"}, "6"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "GPU-b"),
    ],
)
def test_virtual_rank_maps_through_what_is_visible(outer: dict[str, str], device: str) -> None:
    assert virtual_rank(1, outer) == {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--rank=${local_rank}", "--rank=3"),
        ("$local_rank", "3"),
        ("$$local_rank", "$local_rank"),
        ("$$ $", "$ $"),
        ("${rank} ${worker:rank} $local_ranks", "${rank} ${worker:rank} $local_ranks"),
        ("plain", "plain"),
    ],
)
def test_argument_macros_are_torchs(text: str, filled: str) -> None:
    assert substitute_local_rank((text, 5, None), 3) == (filled, 5, None)


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name}${rank}]:", "[trainer3]:"),
        ("$local_rank of $hostname|", "1 of |"),
        ("cost $$5 ${rank}", "cost $5 3"),
        ("$${rank} $unknown", "${rank} $unknown"),
    ],
)
def test_line_prefixes_are_templates(template: str, prefix: str) -> None:
    agent = LocalElasticAgent(
        WorkerSpec("trainer", 2, entrypoint="x"),
        DefaultLogsSpecs(),
        log_line_prefix_template=template,
    )
    assert agent._prefixes({1: place()}) == {1: prefix}


@given(st.integers(1, 65_535), st.integers(1, 65_535))
def test_ports_are_outside_the_clients_range(a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    ports = list(islice(candidates((low, high)), 100))
    assert all(10_000 <= port <= 65_535 for port in ports)
    if low > 10_000 or high < 65_535:
        assert all(not low <= port <= high for port in ports)
    if low > 11_000 or high < 64_000 or (low <= 10_000 and high == 65_535):
        assert ports


def test_kernel_sleep_counts_only_what_lasts() -> None:
    detector = KernelDetector(10.0, lambda: 9)

    def stuck(now: float, states: str) -> bool:
        looks = {rank: Usage(0.0, state=state, pids=(rank,)) for rank, state in enumerate(states)}
        # who starts workers stands for those that are yet to come
        return detector.look(now, {**looks, 9: Usage(0.0, state="D", pids=(9,))}) is not None

    assert not stuck(0.0, "DDR")
    assert detector.interval == 2.5
    assert not stuck(6.0, "DSR")
    assert stuck(12.0, "DDR")
    assert not stuck(13.0, "SDR")
    assert stuck(22.0, "SDR")


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("", 0.0), ("x", 0.0), ("5", 5.0)])
def test_kernel_sleep_is_configured_by_torchs_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, text)
    assert kernel_sleep() == seconds
    assert kernel_sleep(3.0) == 3.0


def test_a_spec_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="local_world_size: 0"):
        WorkerSpec("r", 0, entrypoint="x")
    with pytest.raises(ValueError, match="monitor_interval"):
        WorkerSpec("r", 1, entrypoint="x", monitor_interval=0)
    with pytest.raises(ValueError, match="entrypoint"):
        WorkerSpec("r", 1)
    with pytest.warns(DeprecationWarning, match=r"WorkerSpec\.fn"):
        spec = WorkerSpec("r", 1, fn=place)
    assert spec.get_entrypoint_name() == "place"
    assert WorkerSpec("r", 1, entrypoint="/a/b").get_entrypoint_name() == "b"
