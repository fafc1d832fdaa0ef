"""Which part of a worker's environment the spawner must have before it starts or imports."""

from __future__ import annotations

import os

import pytest

from lllaunch.spawner.interpreter import (
    Shared,
    acts_at_exec,
    acts_at_import,
    comes_too_late,
    in_common,
    told,
)


@pytest.mark.parametrize(
    ("names", "at_exec", "at_import"),
    [
        (("PYTHONPATH", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX"), True, True),
        (("OMP_NUM_THREADS", "MKL_DEBUG", "KMP_AFFINITY", "TORCH_LOGS"), False, True),
        # of the contract: the worker itself
        (("RANK", "PATH", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_X"), False, False),
    ],
)
def test_when_a_variable_acts(names: tuple[str, ...], at_exec: bool, at_import: bool) -> None:
    for name in names:
        assert (acts_at_exec(name), acts_at_import(name)) == (at_exec, at_import), name


@pytest.mark.parametrize(
    ("env", "late"),
    [
        ({}, False),
        ({"OMP_NUM_THREADS": "1", "HF_HOME": "/h", "SEED": "7", "RANK": "1"}, False),
        ({"OMP_NUM_THREADS": "2"}, True),
        ({"HF_HOME": "/other"}, True),
        ({"LC_ALL": "C"}, True),
        # of the contract, though something has asked for it
        ({"RANK": "2", "CUDA_VISIBLE_DEVICES": "1", "LLLAUNCH_HEARTBEAT": "x"}, False),
    ],
)
def test_what_a_fork_of_a_spawner_has_too_late(
    env: dict[str, str], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HOME": "/h", "SEED": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LC_ALL", raising=False)
    read = frozenset({"HF_HOME", "RANK", "CUDA_VISIBLE_DEVICES", "LLLAUNCH_HEARTBEAT"})
    assert comes_too_late(env, read) is late


def test_a_worker_is_told_all_and_what_is_in_common_goes_to_the_spawner() -> None:
    envs = [{"A": "a", "B": "b", "CUDA_VISIBLE_DEVICES": "0"}, {"A": "a", "B": "c"}]
    assert in_common(envs) == {"A": "a"}
    assert in_common(envs[:1]) == {"A": "a", "B": "b"}
    assert in_common([]) == {}
    assert told({"A": "a"}).items() >= {"A": "a", "PATH": os.environ["PATH"]}.items()


@pytest.mark.parametrize(
    ("has", "wanted", "serves"),
    [
        ({"A": "a"}, {"A": "a"}, True),
        ({"A": "a"}, {"A": "b"}, False),
        ({"A": "a"}, {}, False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, True),
        ({}, {"CUDA_VISIBLE_DEVICES": ""}, True),
        # nobody can take it from the workers
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, False),
    ],
)
def test_whom_a_spawner_serves(has: dict[str, str], wanted: dict[str, str], serves: bool) -> None:
    assert Shared(has, "/", ("m",)).serves(Shared(wanted, "/", ("m",))) is serves
    assert not Shared(has, "/", ("m",)).serves(Shared(wanted, "/", ()))
    assert not Shared(has, "/", ("m",)).serves(Shared(wanted, "/x", ("m",)))
