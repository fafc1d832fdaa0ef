"""What a launcher may lease, on machines that are made up, and the locks on it, which are real."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import WAIT
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.errors import ConfigError
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import Gpu, list_gpus
from lllaunch.sweep.machine import (
    LeaseFailed,
    Leases,
    Limit,
    SweepMachine,
    find_machine,
)
from lllaunch.sweep.pool import Lease
from lllaunch.testing import leaked_fds, open_fds

EIGHT_CORES = Cores(tuple(range(8)))


def uuid(index: int) -> str:
    return f"GPU-{index}{index}aa-bb"


def machine(
    gpus: Limit = None, cpus: Limit = None, number: int = 4, **environ: str
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
        ("3, 0", [("3", uuid(3)), ("0", uuid(0))]),
        ("2,-1,0", [("2", uuid(2))]),
        ("2,٣", [("2", uuid(2))]),  # a digit to Python, not to CUDA
        ("2,2", []),
        ("1", [("1", "MIG-1")]),  # a sliced GPU stands for its first slice
        ("GPU-33,GPU-00aa-bb", [("GPU-33", uuid(3)), ("GPU-00aa-bb", uuid(0))]),
        ("GPU-33,GPU-33a", []),
        ("MIG-2,MIG-9,MIG-1", [("MIG-2", "MIG-2")]),
    ],
)
def test_gpus_are_named_as_listed_and_known_by_uuid(
    visible: str | None, gpus: list[tuple[str, str]]
) -> None:
    nvml = FakeNvml([], ["MIG-1", None, "MIG-2"], None, None)
    assert [tuple(gpu) for gpu in list_gpus(visible, nvml)] == gpus
    assert nvml.open == 0


def test_a_lost_gpu_keeps_its_place() -> None:
    class Lossy(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's name
            if index == 1:
                raise FakeNvmlError("GPU is lost")
            return index

    found = list_gpus(None, Lossy(None, None, None))
    assert [gpu.name for gpu in found] == ["0", "1", "2"]
    assert len({gpu.uuid for gpu in found}) == 3


@pytest.mark.parametrize(
    ("limit", "visible", "chosen"),
    [
        (None, "3,1", ["3", "1"]),
        (0, "3,1", []),
        ([], "3,1", []),
        (2, "3,1", ["3", "1"]),
        ([1], "3,1", ["1"]),
        (["1", 3], "3,1", ["1", "3"]),
        ([uuid(1)], "3,1", ["1"]),
        (["3", uuid(3)], "3,1", ["3"]),
        (["GPU-1"], "GPU-33,GPU-11aa", ["GPU-11aa"]),
    ],
)
def test_gpus_within_limits(limit: Limit, visible: str, chosen: list[str]) -> None:
    assert names(machine(limit, CUDA_VISIBLE_DEVICES=visible)) == chosen


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (3, "expected at most 2, the number of GPUs that are visible, got 3 [number]"),
        ([0], "expected names of visible GPUs (3, 1), got [0]; '0' is none of them [gpus]"),
    ],
)
def test_limits_of_gpus_that_are_wrong(limit: Limit, problem: str) -> None:
    assert problems(gpus=limit, CUDA_VISIBLE_DEVICES="3,1") == [f"hydra.launcher.gpus: {problem}"]


def test_gpus_that_are_not_there_are_told_with_the_reason() -> None:
    assert problems(gpus=1, number=0) == [
        "hydra.launcher.gpus: 1 asks for GPUs, but found no GPU; leave it out [gpus]"
    ]
    (problem,) = problems(gpus=[0], CUDA_VISIBLE_DEVICES="x")
    assert "[0] asks for GPUs, but found no GPU with CUDA_VISIBLE_DEVICES='x';" in problem
    with pytest.raises(ConfigError, match=r"but found no NVIDIA driver \(Driver Not Loaded\)"):
        find_machine({}, 1, nvml=FakeNvml(broken=True), cores=EIGHT_CORES)


def test_without_a_driver_there_are_cores() -> None:
    found = find_machine({}, nvml=FakeNvml(broken=True), cores=EIGHT_CORES)
    assert found.everything == Lease((), EIGHT_CORES.numbers)
    # There may be GPUs that NVML does not know: they are not hidden from the job.
    assert found.environment(Lease()) == {}


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
        ("", None, []),
    ],
)
def test_pretended_gpus(pretended: str, visible: str | None, chosen: list[str]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = machine(LLLAUNCH_PRETEND_GPUS=pretended, **environ)
    assert names(found) == chosen
    # never taken for those that are there
    assert all(gpu.uuid.startswith("pretended-") for gpu in found.gpus)


CORES = Cores((0, 1, 2, 3, 8, 9), quota=2.5)
CORES_OR_RANGES = "expected cores and ranges of them (0, 3, '0-3')"


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (None, (0, 1)),
        (0, ()),
        (3, (0, 1, 2)),
        (6, CORES.numbers),
        ([9, 0], (0, 9)),
        (["1-3", "8", 3], (1, 2, 3, 8)),
    ],
)
def test_cores_within_limits(limit: Limit, chosen: tuple[int, ...]) -> None:
    assert find_machine({}, 0, limit, cores=CORES).cpus == chosen


@pytest.mark.parametrize(("quota", "number"), [(None, 6), (100.0, 6), (6.0, 6), (1.9, 1), (0.1, 1)])
def test_slots_by_quota(quota: float | None, number: int) -> None:
    assert len(find_machine({}, 0, cores=Cores(CORES.numbers, quota)).cpus) == number


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (7, "expected at most 6, the number of cores that may be used, got 7"),
        ([4], "expected cores that may be used (0-3, 8-9), got [4]; 4 may not be used [cpus]"),
        (["0-999999999"], "expected cores that may be used (0-3, 8-9), got ['0-999999999'];"),
        (["3-1"], f"{CORES_OR_RANGES}, got ['3-1']; '3-1' is neither"),
        ([-1], f"{CORES_OR_RANGES}, got [-1]; -1 is neither"),
    ],
)
def test_limits_of_cores_that_are_wrong(limit: Limit, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_machine({}, 0, limit, cores=CORES)
    assert str(caught.value).startswith(f"hydra.launcher.cpus: {problem}")
    assert caught.value.exit_code == 2


CFS = "cpu/a/cpu.cfs_"


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "4000 1000", "a/cpu.max": "2000 1000"}, 2.0),
        ("0::/host/path\n", {"cpu.max": "300000 100000\n"}, 3.0),  # in a container
        ("0::/../../path\n", {"cpu.max": "300000 100000\n"}, 3.0),  # outside of its namespace
        ("2:cpu,cpuacct:/a\n", {f"{CFS}quota_us": "5\n", f"{CFS}period_us": "10\n"}, 0.5),
        ("2:cpu,cpuacct:/a\n0::/\n", {"unified/cpu.max": "100000 100000"}, 1.0),
        ("", {}, None),
    ],
)
def test_quota(tmp_path: Path, cgroup: str, files: dict[str, str], quota: float | None) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    cores = Cores(tuple(sorted(os.sched_getaffinity(0))), quota)
    assert find_cores(str(tmp_path)) == cores


# names and numbers that no other process has
MARK = f"test-{os.getpid()}"
CORE = 4 * os.getpid() + 100_000
MACHINE = SweepMachine(
    gpus=tuple(Gpu(name, f"{MARK}-{name}") for name in "abcd"), cpus=tuple(range(CORE, CORE + 4))
)


@pytest.fixture(autouse=True)
def leaves_no_descriptor() -> Iterator[None]:
    before = open_fds()
    yield
    assert not leaked_fds(before)


@pytest.fixture
def launchers() -> Iterator[tuple[Leases, Leases]]:
    both = Leases(MACHINE), Leases(MACHINE)
    yield both
    for leases in both:
        leases.close()


def gpus(*names: str) -> Lease:
    return Lease(gpus=names)


def gpu(name: str) -> Lease:
    return Lease((name,))


def ready(watch: socket.socket, milliseconds: int = 0) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(milliseconds))


def held(leases: Leases) -> tuple[Lease, ...]:
    return tuple(leases._locks)


Two = tuple[Leases, Leases]


def test_the_same_gpu_under_another_name_is_the_same_gpu() -> None:
    renamed = MACHINE._replace(gpus=(Gpu("0", f"{MARK}-b"),))
    one, other = Leases(MACHINE), Leases(renamed)
    assert one.acquire(gpus("b")) is None
    assert other.acquire(gpus("0")) == gpu("0")
    one.close()
    assert other.acquire(gpus("0")) is None
    other.close()


def test_cores_are_locked_only_where_that_is_asked_for() -> None:
    free = Leases(MACHINE), Leases(MACHINE)
    pinned = Leases(MACHINE, lock_cpus=True), Leases(MACHINE, lock_cpus=True)
    lease = Lease((), (CORE, CORE + 1))
    assert [leases.acquire(lease) for leases in free] == [None, None]
    assert pinned[0].acquire(lease) is None
    assert pinned[1].acquire(Lease((), (CORE + 1, CORE + 2))) == Lease((), (CORE + 1,))
    assert [slot.cpus for slot in held(pinned[0])] == [(CORE,), (CORE + 1,)]
    for leases in (*free, *pinned):
        leases.close()


def test_a_job_keeps_what_it_was_given_and_what_it_executes_nothing(launchers: Two) -> None:
    one, other = launchers
    one.acquire(gpus("a", "b"))
    # sent to the job, which has descriptors of its own then
    given = one.descriptors(gpus("a"))
    assert not any(map(os.get_inheritable, given))
    kept = [os.dup(descriptor) for descriptor in given]
    one.close()
    assert other.acquire(gpus("b")) is None
    assert other.acquire(gpus("a")) == gpu("a")
    watch = other.watch(gpu("a"))
    assert watch is not None
    assert not ready(watch)
    for descriptor in kept:
        os.close(descriptor)
    assert ready(watch, round(WAIT * 1000))
    assert other.acquire(gpus("a")) is None


def test_what_the_system_refuses_is_told(launchers: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            if str(address).count("-b"):
                raise PermissionError(1, "Operation not permitted")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(LeaseFailed, match=r"^GPU b cannot be leased: Operation not permitted$"):
        launchers[0].acquire(gpus("a", "b"))
    assert held(launchers[0]) == ()


NAMES = st.lists(st.sampled_from("abcd"), unique=True, min_size=1)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), NAMES), max_size=30))
def test_no_gpu_is_ever_held_twice(steps: list[tuple[int, bool, list[str]]]) -> None:
    launchers = [Leases(MACHINE) for _ in range(3)]
    owners: dict[str, int] = {}
    try:
        for who, takes, names in steps:
            foreign = {name for name in names if owners.get(name, who) != who}
            if takes:
                names = [name for name in names if owners.get(name) != who]  # noqa: PLW2901
                busy = launchers[who].acquire(gpus(*names))
                assert bool(busy) == bool(foreign)
                assert busy is None or busy.gpus[0] in foreign
                if busy is None:
                    owners.update(dict.fromkeys(names, who))
            else:
                launchers[who].release(gpus(*names))
                for name in set(names) - foreign:
                    owners.pop(name, None)
            for number, leases in enumerate(launchers):
                own = {slot.gpus[0] for slot in held(leases)}
                assert own == {name for name, owner in owners.items() if owner == number}
    finally:
        for leases in launchers:
            leases.close()
