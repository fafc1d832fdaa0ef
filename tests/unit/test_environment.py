"""Which part of a worker's environment the spawner must have before it starts or imports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.spawner.interpreter import Shared, acts_at_exec, acts_at_import, exec_part, split

NAMES = st.sampled_from(
    ["A", "RANK", "OMP_NUM_THREADS", "PYTHONPATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"]
)
ENVS = st.dictionaries(NAMES, st.sampled_from(["0", "1", "2"]))


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


def test_a_shared_value_goes_to_the_spawner_and_another_value_to_a_fresh_interpreter() -> None:
    envs = {
        0: {"RANK": "0", "OMP_NUM_THREADS": "1", "MKL_X": "a"},
        1: {"RANK": "1", "OMP_NUM_THREADS": "1", "MKL_X": "b"},
    }
    divided = split({"HOME": "/"}, envs)
    assert divided.base == {"HOME": "/", "OMP_NUM_THREADS": "1"}
    assert divided.own == {0: {"RANK": "0", "MKL_X": "a"}, 1: {"RANK": "1", "MKL_X": "b"}}
    assert divided.fresh == {0, 1}


def test_every_rank_is_told_its_gpus() -> None:
    outer = {"CUDA_VISIBLE_DEVICES": "0,1", "A": "a"}
    divided = split(outer, {0: {}, 1: {"CUDA_VISIBLE_DEVICES": "1"}})
    assert divided.base == outer
    assert divided.own == {0: {"CUDA_VISIBLE_DEVICES": "0,1"}, 1: {"CUDA_VISIBLE_DEVICES": "1"}}
    assert divided.fresh == frozenset()
    assert split({}, {0: {}}).own == {0: {}}
    # one rank alone needs no interpreter of its own
    alone = split({}, {0: {"OMP_NUM_THREADS": "8", "PYTHONPATH": "x"}})
    assert (alone.fresh, exec_part(alone.base)) == (frozenset(), {"PYTHONPATH": "x"})


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


@given(ENVS, st.lists(ENVS, min_size=1, max_size=4))
def test_every_rank_gets_its_whole_environment(
    outer: dict[str, str], envs: list[dict[str, str]]
) -> None:
    divided = split(outer, dict(enumerate(envs)))
    for rank, env in enumerate(envs):
        seen = {**divided.base, **divided.own[rank]}
        assert all(seen[name] == value for name, value in {**outer, **env}.items())
        late = {name for name in divided.own[rank] if acts_at_import(name)}
        assert bool(late) == (rank in divided.fresh)
