"""What a launcher may lease, on machines that a fake NVML makes up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.errors import ConfigError
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import GpusUnknown, count_gpus, list_gpus
from lllaunch.sweep.machine import SweepMachine, find_machine, pin
from lllaunch.sweep.pool import Lease

EIGHT_CORES = Cores(tuple(range(8)))
CORES_OR_RANGES = "expected cores and ranges of them (0, 3, '0-3')"


def uuid(index: int) -> str:
    return f"GPU-{index}{index}aa-bb"


def machine(
    gpus: object = None, cpus: object = None, number: int = 4, **environ: str
) -> SweepMachine:
    return find_machine(environ, gpus, cpus, nvml=FakeNvml(*[None] * number), cores=EIGHT_CORES)


def names(found: SweepMachine) -> list[str]:
    return [gpu.name for gpu in found.gpus]


def problems(**arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        machine(**arguments)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, [("0", uuid(0)), ("1", "MIG-1"), ("2", uuid(2)), ("3", uuid(3))]),
        ("", []),
        ("-1", []),
        ("3, 0", [("3", uuid(3)), ("0", uuid(0))]),
        ("2,-1,0", [("2", uuid(2))]),
        ("2,4,0", [("2", uuid(2))]),
        ("2,٣", [("2", uuid(2))]),  # a digit to Python, not to CUDA
        ("2,2", []),
        ("1", [("1", "MIG-1")]),  # a sliced GPU stands for its first slice
        ("GPU-33,GPU-00aa-bb", [("GPU-33", uuid(3)), ("GPU-00aa-bb", uuid(0))]),
        ("GPU-33,0", [("GPU-33", uuid(3))]),
        ("GPU-", []),
        ("GPU-33,GPU-33a", []),
        ("MIG-2,MIG-1", [("MIG-2", "MIG-2"), ("MIG-1", "MIG-1")]),
        ("MIG-2,MIG-9,MIG-1", [("MIG-2", "MIG-2")]),
    ],
)
def test_gpus_are_named_as_listed_and_known_by_uuid(
    visible: str | None, gpus: list[tuple[str, str]]
) -> None:
    nvml = FakeNvml([], ["MIG-1", None, "MIG-2"], None, None)
    assert [tuple(gpu) for gpu in list_gpus(visible, nvml)] == gpus
    assert nvml.open == 0


ENTRIES = st.sampled_from(
    ["0", "1", "2", "3", "4", "-1", "", "x", "GPU-0", "GPU-1", uuid(1), uuid(2), "GPU-", "MIG-1"]
)


@given(st.lists(ENTRIES, max_size=5))
def test_what_a_job_gets_is_what_the_launcher_saw(entries: list[str]) -> None:
    nvml = FakeNvml(*[None] * 4)
    visible = ",".join(entries)
    gpus = list_gpus(visible, nvml)
    listed = [gpu.name for gpu in gpus]
    assert listed in (entries[: len(listed)], [])
    assert len({gpu.uuid for gpu in gpus}) == len(gpus) == count_gpus(visible, nvml)
    for part in (listed, listed[1:], listed[::-1]):
        again = list_gpus(",".join(part), nvml)
        assert sorted(again) == sorted(gpu for gpu in gpus if gpu.name in part)


def test_a_lost_gpu_keeps_its_place() -> None:
    class Lossy(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's name
            if index == 1:
                raise FakeNvmlError("GPU is lost")
            return index

    found = list_gpus(None, Lossy(None, None, None))
    assert [gpu.name for gpu in found] == ["0", "1", "2"]
    assert len({gpu.uuid for gpu in found}) == 3


def test_a_driver_that_fails_is_told() -> None:
    with pytest.raises(GpusUnknown, match=r"found no NVIDIA driver \(Driver Not Loaded\)"):
        list_gpus(None, FakeNvml(broken=True))


@pytest.mark.parametrize(
    ("limit", "visible", "chosen"),
    [
        (None, "3,1", ["3", "1"]),
        (0, "3,1", []),
        ([], "3,1", []),
        (1, "3,1", ["3"]),
        ("2", "3,1", ["3", "1"]),
        ([1], "3,1", ["1"]),
        (["1", 3], "3,1", ["1", "3"]),
        ([uuid(1)], "3,1", ["1"]),
        (["GPU-1"], "GPU-33,GPU-11aa", ["GPU-11aa"]),
    ],
)
def test_gpus_within_limits(limit: object, visible: str, chosen: list[str]) -> None:
    assert names(machine(limit, CUDA_VISIBLE_DEVICES=visible)) == chosen


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (3, "expected at most 2, the number of GPUs that are visible, got 3"),
        (-1, "expected a number of GPUs, 0 or more, got -1"),
        (True, "expected a number of GPUs (0, 1, 2, ...) or a list of them, got True"),
        (1.5, "expected a number of GPUs (0, 1, 2, ...) or a list of them, got 1.5"),
        ("some", "expected a number of GPUs (0, 1, 2, ...) or a list of them, got 'some'"),
        ([0], "expected names of visible GPUs (3, 1), got [0]; '0' is none of them"),
        ([None], "expected names of GPUs, got [None]; None is not one"),
        ([3, 1, 3], "expected each GPU at most once, got [3, 1, 3]; 3 is named twice"),
        (
            ["3", uuid(3)],
            f"expected each GPU at most once, got ['3', '{uuid(3)}']; 3 is named twice",
        ),
        (
            ["GPU-"],
            "expected names of visible GPUs (3, 1), got ['GPU-']; 'GPU-' is several of them",
        ),
    ],
)
def test_limits_of_gpus_that_are_wrong(limit: object, problem: str) -> None:
    assert problems(gpus=limit, CUDA_VISIBLE_DEVICES="3,1") == [f"hydra.launcher.gpus: {problem}"]


def test_gpus_that_are_not_there_are_told_with_the_reason() -> None:
    assert problems(gpus=1, number=0) == [
        "hydra.launcher.gpus: 1 asks for GPUs, but found no GPU; leave it out"
    ]
    (problem,) = problems(gpus=[0], CUDA_VISIBLE_DEVICES="x")
    assert "[0] asks for GPUs, but found no GPU with CUDA_VISIBLE_DEVICES='x';" in problem
    with pytest.raises(ConfigError, match="but found no NVIDIA driver"):
        find_machine({}, 1, nvml=FakeNvml(broken=True), cores=EIGHT_CORES)


def test_without_a_driver_there_are_cores() -> None:
    found = find_machine({}, nvml=FakeNvml(broken=True), cores=EIGHT_CORES)
    assert found.everything == Lease((), EIGHT_CORES.numbers)
    # There may be GPUs that NVML does not know: they are not hidden from the job.
    assert found.environment(Lease()) == {}


def test_a_driver_is_not_asked_where_no_gpu_is_wanted() -> None:
    class Unasked(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
            raise AssertionError("asked")

    found = find_machine({}, 0, nvml=Unasked(None), cores=EIGHT_CORES)
    assert found.environment(Lease()) == {"CUDA_VISIBLE_DEVICES": ""}
    find_machine({"CUDA_VISIBLE_DEVICES": ""}, nvml=Unasked(None), cores=EIGHT_CORES)


def test_a_job_sees_its_gpus_and_no_others() -> None:
    found = machine(CUDA_VISIBLE_DEVICES="3,1,0")
    assert found.environment(Lease(("0", "3"))) == {"CUDA_VISIBLE_DEVICES": "0,3"}
    assert found.environment(Lease((), (1,))) == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("pretended", "visible", "chosen"),
    [
        ("a,b, c", None, ["a", "b", "c"]),
        ("a,b,c", "c,a", ["c", "a"]),
        ("a,b,c", "c,x,a", ["c"]),
        ("a,b,c", "a,a", []),
        ("a,b,c", "", []),
        ("", None, []),
    ],
)
def test_pretended_gpus(pretended: str, visible: str | None, chosen: list[str]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = machine(LLLAUNCH_PRETEND_GPUS=pretended, **environ)
    assert names(found) == chosen
    # never taken for those that are there
    assert all(gpu.uuid.startswith("pretended-") for gpu in found.gpus)


@pytest.mark.parametrize("pretended", ["a,,b", "a,a", "a b", "a/b", "x" * 41, "\0"])
def test_pretended_gpus_that_cannot_be(pretended: str) -> None:
    (problem,) = problems(LLLAUNCH_PRETEND_GPUS=pretended)
    assert problem.startswith("LLLAUNCH_PRETEND_GPUS: ")
    assert "expected a list of different names" in problem


CORES = Cores((0, 1, 2, 3, 8, 9), quota=2.5)
CORES_OR_RANGES = "expected cores and ranges of them (0, 3, '0-3')"


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (None, (0, 1)),
        (0, ()),
        (1, (0,)),
        ("3", (0, 1, 2)),
        (6, CORES.numbers),
        ([9, 0], (0, 9)),
        (["1-3", "8"], (1, 2, 3, 8)),
        ([], ()),
    ],
)
def test_cores_within_limits(limit: object, chosen: tuple[int, ...]) -> None:
    assert find_machine({}, 0, limit, cores=CORES).cpus == chosen


@pytest.mark.parametrize(("quota", "number"), [(None, 6), (100.0, 6), (6.0, 6), (1.9, 1), (0.1, 1)])
def test_slots_by_quota(quota: float | None, number: int) -> None:
    assert len(find_machine({}, 0, cores=Cores(CORES.numbers, quota)).cpus) == number


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (7, "expected at most 6, the number of cores that may be used, got 7"),
        (-1, "expected a number of CPU slots, 0 or more, got -1"),
        (True, "expected a number of CPU slots (0, 1, 2, ...) or a list of cores, got True"),
        ({}, "expected a number of CPU slots (0, 1, 2, ...) or a list of cores, got {}"),
        ([4], "expected cores that may be used (0-3, 8-9), got [4]; 4 may not be used"),
        ([-1], "expected cores that may be used (0-3, 8-9), got [-1]; -1 may not be used"),
        (
            ["0-999999999"],
            (
                "expected cores that may be used (0-3, 8-9), got "
                "['0-999999999']; 0-999999999 may not be used"
            ),
        ),
        (["3-1"], f"{CORES_OR_RANGES}, got ['3-1']; '3-1' is neither"),
        ([1.0], f"{CORES_OR_RANGES}, got [1.0]; 1.0 is neither"),
        ([0, "0-1"], "expected each core at most once, got [0, '0-1']; 0 is named twice"),
    ],
)
def test_limits_of_cores_that_are_wrong(limit: object, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_machine({}, 0, limit, cores=CORES)
    assert str(caught.value).startswith(f"hydra.launcher.cpus: {problem}")
    assert caught.value.exit_code == 2


def test_all_that_is_wrong_is_told_together() -> None:
    assert [text.partition(":")[0] for text in problems(gpus="x", cpus="y")] == [
        "hydra.launcher.gpus",
        "hydra.launcher.cpus",
    ]


def test_a_long_value_is_shortened() -> None:
    (problem,) = problems(gpus=["x" * 10_000])
    assert len(problem) < 300


LIMITS = st.none() | st.integers() | st.text() | st.lists(st.integers() | st.text()) | st.floats()


@given(LIMITS, LIMITS)
def test_any_limit_is_kept_or_refused(gpus: object, cpus: object) -> None:
    try:
        found = find_machine({}, gpus, cpus, nvml=FakeNvml(None, None), cores=CORES)
    except ConfigError:
        return
    assert set(found.cpus) <= set(CORES.numbers)
    assert {gpu.name for gpu in found.gpus} <= {"0", "1"}


def fake_proc(directory: Path, cgroup: str, mounts: str, files: dict[str, str]) -> str:
    own = directory / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(cgroup)
    (own / "mountinfo").write_text(mounts.replace("MOUNT", str(directory)))
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return str(directory / "proc")


V2 = "30 23 0:26 / MOUNT/cg rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:27 / MOUNT/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "quota"),
    [
        ("0::/a/b\n", V2, {"cg/a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", V2, {"cg/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (
            "0::/a/b\n",
            V2,
            {"cg/a/b/cpu.max": "400000 100000\n", "cg/a/cpu.max": "200000 100000\n"},
            2.0,
        ),
        ("0::/host/path\n", V2, {"cg/cpu.max": "300000 100000\n"}, 3.0),  # in a container
        (
            "2:cpu,cpuacct:/a\n",
            V1,
            {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (
            "2:cpu,cpuacct:/a\n",
            V1,
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        ("2:cpu,cpuacct:/a\n0::/\n", V1 + V2, {"cg/cpu.max": "100000 100000"}, 1.0),
        ("0::/\n", V2, {"cg/cpu.max": "nonsense"}, None),
        ("0::/\n", V2, {"cg/cpu.max": "5 0"}, None),
        ("", "", {}, None),
    ],
)
def test_quota(
    tmp_path: Path, cgroup: str, mounts: str, files: dict[str, str], quota: float | None
) -> None:
    proc = fake_proc(tmp_path, cgroup, mounts, files)
    assert find_cores(proc) == Cores(tuple(sorted(os.sched_getaffinity(0))), quota)


def test_pinning_binds_to_the_cores_of_the_lease() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    try:
        pin(Lease(("0",), ()))
        assert os.sched_getaffinity(0) == before
        pin(Lease((), (last,)))
        assert os.sched_getaffinity(0) == {last}
        with pytest.raises(OSError, match="Invalid argument"):
            pin(Lease((), (1000,)))
    finally:
        os.sched_setaffinity(0, before)
