"""Durations, sizes, masks of streams, numbers of workers and of GPUs."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.config.fields import Findings
from lllaunch.config.values import (
    Mask,
    check_mask,
    count_cpus,
    count_gpus,
    format_duration,
    format_size,
    parse_duration,
    parse_mask,
    parse_nproc,
    parse_ranks,
    parse_size,
    write_mask,
)
from lllaunch.errors import Unfit
from lllaunch.spec import Std
from lllaunch.text import as_ranges, write_range
from tests.unit.launch_nodes import mistakes

# Durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (0, 0),
        ("1e2", 100),
        ("1h 30m", 5400),
        ("1H30M", 5400),
        ("1.5h", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("10000d", 864_000_000),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


NO_DURATIONS = ["", "1x", "1m1h", "1m1m", "1 2", "1.h", "9" * 99, "\N{ARABIC-INDIC DIGIT ONE}s"]


@pytest.mark.parametrize("written", [*NO_DURATIONS, True, {}, float("nan")])
def test_what_is_no_duration_says_what_one_looks_like(written: object) -> None:
    with pytest.raises(Unfit) as caught:
        parse_duration(written)
    assert "a duration (90, 90s, 10m, 1h30m, 1d)" in caught.value.expected


def test_a_colon_is_refused_with_what_to_write() -> None:
    with pytest.raises(Unfit) as caught:
        parse_duration("1:30")
    assert caught.value.hint == "write 1h30m"


@given(st.floats(1e-9, 864_000_000))
def test_any_float_of_seconds_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


# Sizes


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1024", 1024),
        ("7B", 7),
        ("512 mib", 512 * 2**20),
        ("16GB", 16 * 10**9),
        ("1kB", 1000),
        ("1.5KiB", 1536),
        ("2PiB", 2**51),
    ],
)
def test_sizes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "GB", "1 2", "1XB", "1e3", None, True, 1.5])
def test_what_is_no_size_says_what_one_looks_like(written: object) -> None:
    with pytest.raises(Unfit) as caught:
        parse_size(written)
    assert caught.value.expected == "a size (1048576, 512MiB, 16GB)"


@pytest.mark.parametrize("written", ["16G", "16g", "16Gi"])
def test_a_unit_without_its_b_could_be_two(written: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_size(written)
    assert caught.value.hint == "write 16GB (powers of 1000) or 16GiB"


@given(st.integers(0, 2**63 - 1))
def test_a_written_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


# Masks

NONE, OUT, ERR, ALL = Std.NONE, Std.OUT, Std.ERR, Std.ALL


def read(value: Any, nproc: int = 8) -> dict[int, Std]:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    assert findings.problems == []
    assert mask is not None
    return mask.by_rank(nproc)


def complaints(value: Any, nproc: int = 8) -> list[str]:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    check_mask(mask or Mask(), value, "launch.tee", nproc, findings)
    return [str(problem) for problem in findings.problems]


WORDS = {"none": NONE, "out": OUT, "err": ERR, "all": ALL, " ALL ": ALL, 2: ERR, "3": ALL}


@pytest.mark.parametrize(
    ("value", "streams"), [*WORDS.items(), (False, NONE), (None, NONE), ("", NONE)]
)
def test_one_mask_is_for_all_ranks(value: Any, streams: Std) -> None:
    assert read(value, 3) == dict.fromkeys(range(3), streams)


@pytest.mark.parametrize(
    "value", ["0:3,2:1", "2:out, 0:all", {"0": 3, "2": 1}, {"0-0": "all", "1": False, 2: "out"}]
)
def test_ranks_that_are_not_named_have_none(value: Any) -> None:
    assert read(value, 4) == {0: ALL, 1: NONE, 2: OUT, 3: NONE}


MISTAKES = """
tee: al
    launch.tee: expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out'), got 'al';
    did you mean 'all'? [mask]
tee: 10:30
    launch.tee: expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out'), got 630;
    YAML reads 10:30 without quotes as 630: quote it [mask]
tee: "0:3,1"
    launch.tee: expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out'), got
    '0:3,1' [mask]
tee: "0:al"
    launch.tee: expected a mask of streams (none, out, err, all, 0-3), got 'al'; did you mean 'all'?
    [mask]
tee: "7-1:all"
    launch.tee: expected a range from a lower to a higher rank, got '7-1'; did you mean '1-7'?
    [ranks]
tee: {0: all, 0-3: out}
    launch.tee: expected each rank at most once, got {0: 'all', 0-3: 'out'}; 0 and 0-3 overlap
    [mask]
tee: {6-9: all}
    launch.tee: expected ranks from 0 to 7, as nproc is 8, got {6-9: 'all'} [ranks]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_what_is_no_mask_is_explained(node: Any, told: str) -> None:
    assert complaints(node["tee"]) == [told]


masks = st.lists(st.sampled_from(list(Std)), min_size=1, max_size=40).map(
    lambda streams: dict(enumerate(streams))
)


@given(masks)
def test_all_ways_to_write_a_mask_mean_the_same(streams: dict[int, Std]) -> None:
    numbers = ",".join(f"{rank}:{int(std)}" for rank, std in streams.items())
    names = {NONE: "none", OUT: "out", ERR: "err", ALL: "all"}
    named = {rank: names[std] for rank, std in streams.items()}
    for written in (numbers, named, write_mask(streams)):
        assert read(written, len(streams)) == streams


@given(st.sets(st.integers(0, 60)))
def test_ranks_are_written_as_the_fewest_ranges(ranks: set[int]) -> None:
    ranges = as_ranges(ranks)
    assert {rank for part in ranges for rank in part} == ranks
    assert {rank for part in ranges for rank in parse_ranks(write_range(part))} == ranks
    gaps = [late.start - early.stop for early, late in itertools.pairwise(ranges)]
    assert all(gap > 0 for gap in gaps)


# Masks as torch has them


@given(st.dictionaries(st.integers(0, 5000), st.sampled_from(list(Std)), min_size=1))
def test_of_torch_any_mapping_is_read_back(mapping: dict[int, Std]) -> None:
    text = ",".join(f"{rank}:{int(mask)}" for rank, mask in mapping.items())
    assert Std.from_str(text) == mapping
    # one digit is the mask of all ranks
    assert Std.from_str("1") is Std.OUT


@pytest.mark.parametrize(
    "text", ["", "4", "-1", "3\n", "0:4", "0:3,", ",0:3", "0:3, 1:1", "0:3\n", "a:1", "٣", "٣:1"]
)
def test_of_torch_anything_else_is_refused_with_the_text_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a mask") as caught:
        Std.from_str(text)
    assert repr(text) in str(caught.value)


# Workers


def workers(value: object, gpus: int | None) -> int:
    """How many there are on a machine of 6 CPUs; without a number of GPUs it has no driver."""

    def count() -> int:
        if gpus is None:
            raise Unfit("found no NVIDIA driver (it is not there)", code="gpus")
        return gpus

    return parse_nproc(value, cpus=lambda: 6, gpus=count)


@pytest.mark.parametrize(
    ("value", "gpus", "number"),
    [(8, 2, 8), ("4", 0, 4), ("cpu", 2, 6), ("gpu", 2, 2), ("AUTO", 2, 2), ("auto", 0, 6)],
)
def test_numbers_and_words(value: object, gpus: int, number: int) -> None:
    assert workers(value, gpus) == number


@pytest.mark.parametrize(
    ("value", "gpus", "said"),
    [
        (0, 1, "a number of workers (1, 2, ... or auto, cpu, gpu)"),
        (10**9, 1, "a number of workers, 10000 at most"),
        (1.5, 1, "a number of workers (1, 2, ... or auto, cpu, gpu)"),
        (True, 1, "a number of workers (1, 2, ... or auto, cpu, gpu)"),
        ("9" * 30, 1, "a number of workers, 10000 at most"),
        ("atuo", 1, "did you mean 'auto'?"),
        ("gpu", 0, "found no visible GPU"),
        ("gpu", None, "found no NVIDIA driver"),
    ],
)
def test_what_is_no_number_of_workers(value: object, gpus: int | None, said: str) -> None:
    with pytest.raises(Unfit) as caught:
        workers(value, gpus)
    problem = str(caught.value.at("launch.nproc", "this"))
    assert said in problem


def test_auto_without_a_driver_is_a_worker_per_cpu() -> None:
    assert workers("auto", None) == 6
    assert count_cpus() == len(os.sched_getaffinity(0))


# GPUs


def test_the_driver_is_asked_only_where_a_gpu_is_visible_and_told_if_it_is_not_there() -> None:
    assert count_gpus("", FakeNvml(broken=True)) == 0
    with pytest.raises(Unfit, match=r"found no NVIDIA driver \(Driver Not Loaded\)"):
        count_gpus(None, FakeNvml(broken=True))


def test_a_driver_that_fails_is_told_and_let_go() -> None:
    class Failing(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
            raise FakeNvmlError("GPU is lost")

    nvml = Failing()
    with pytest.raises(Unfit, match="could not count GPUs: NVML says GPU is lost"):
        count_gpus(None, nvml)
    assert nvml.open == 0


def test_the_real_module_has_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    for name in dir(FakeNvml):
        if name.startswith("nvml") or name == "NVMLError":
            assert hasattr(pynvml, name), name
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(None, None))
    assert count_gpus("0,1") == 2
