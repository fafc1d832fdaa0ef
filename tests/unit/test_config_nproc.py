from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.config.values import count_cpus, count_gpus, parse_nproc
from lllaunch.errors import Unfit


def gpus_of(number: int) -> Any:
    return lambda: number


def no_driver() -> int:
    raise Unfit("found no NVIDIA driver (it is not there)", code="gpus")


@pytest.mark.parametrize(
    ("value", "gpus", "workers"),
    [
        (1, 0, 1),
        (8, 2, 8),
        ("4", 0, 4),
        ("cpu", 2, 6),
        ("gpu", 2, 2),
        ("auto", 2, 2),
        ("AUTO", 0, 6),
    ],
)
def test_numbers_and_words(value: object, gpus: int, workers: int) -> None:
    assert parse_nproc(value, cpus=lambda: 6, gpus=gpus_of(gpus)) == workers


def test_auto_without_a_driver_is_a_worker_per_cpu() -> None:
    assert parse_nproc("auto", cpus=lambda: 6, gpus=no_driver) == 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "a number of workers, 1 or more"),
        (-1, "a number of workers, 1 or more"),
        (10**9, "a number of workers, 10000 at most"),
        (1.5, "a number of workers (1, 2, "),
        (True, "a number of workers (1, 2, "),
        (None, "a number of workers (1, 2, "),
        ("two", "a number of workers (1, 2, "),
        ("9" * 30, "a number of workers (1, 2, "),
        ([1], "a number of workers (1, 2, "),
    ],
)
def test_what_is_no_number_of_workers(value: object, expected: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_nproc(value, cpus=lambda: 1, gpus=gpus_of(1))
    assert expected in caught.value.expected


def test_a_misspelt_word_is_recognised() -> None:
    with pytest.raises(Unfit) as caught:
        parse_nproc("atuo", cpus=lambda: 1, gpus=gpus_of(1))
    assert caught.value.hint == "did you mean 'auto'?"


def test_gpu_without_one_is_wrong_and_says_why() -> None:
    with pytest.raises(Unfit, match="found no visible GPU"):
        parse_nproc("gpu", cpus=lambda: 6, gpus=gpus_of(0))
    with pytest.raises(Unfit, match="found no NVIDIA driver"):
        parse_nproc("gpu", cpus=lambda: 6, gpus=no_driver)


def test_cpus_are_those_that_this_process_may_use() -> None:
    assert count_cpus() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        (None, 4),
        ("", 0),
        (" ", 0),
        ("0", 1),
        ("3,1", 2),
        (" 0 , 2 ", 2),
        ("-1", 0),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("0,,1", 1),
        ("x", 0),
        ("0,x", 1),
        ("0,0", 0),
        ("NoDevFiles", 0),
        ("GPU-00aa-bb", 1),
        ("GPU-00aa-bb,GPU-33", 2),
        ("GPU-00,GPU-nope,GPU-11", 1),
        ("GPU-", 0),  # every GPU begins like that
        ("GPU-00,GPU-00aa", 0),  # the same one twice
        ("GPU-00,1", 1),
        ("MIG-1", 1),
        ("MIG-1,MIG-2,MIG-9", 2),
        ("MIG-1,MIG-1", 0),
        ("MIG-9", 0),
        ("MIG-1,GPU-00", 1),
    ],
)
def test_cuda_visible_devices(visible: str | None, number: int) -> None:
    nvml = FakeNvml([], ["MIG-1", None, "MIG-2"], None, None)
    assert count_gpus(visible, nvml) == number
    assert nvml.open == 0


def test_no_driver_is_told() -> None:
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


def test_names_as_bytes_are_understood() -> None:
    class Old(FakeNvml):
        def nvmlDeviceGetUUID(self, handle: Any) -> bytes:  # noqa: N802 - NVML's name
            return b"GPU-abc"

    assert count_gpus("GPU-a", Old(None)) == 1


def test_the_real_module_has_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    for name in dir(FakeNvml):
        if name.startswith("nvml") or name == "NVMLError":
            assert hasattr(pynvml, name), name
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(None, None))
    assert count_gpus("0,1") == 2


def test_no_gpu_is_counted_without_asking_the_driver_where_none_is_visible() -> None:
    assert count_gpus("", FakeNvml(broken=True)) == 0
