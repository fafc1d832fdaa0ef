"""Leases of several holders in one process: real locks, as each object is a launcher of its own."""

from __future__ import annotations

import os
import pickle
import select
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.linux.gpus import Gpu
from lllaunch.sweep import leases as module
from lllaunch.sweep.leases import LeaseFailed, Leases, Slot, SlotWatch
from lllaunch.sweep.machine import SweepMachine
from lllaunch.sweep.pool import Lease
from lllaunch.testing import leaked_fds, open_fds

# names that no other process has
MARK = f"test-{os.getpid()}"
MACHINE = SweepMachine(
    gpus=tuple(Gpu(name, f"{MARK}-{name}") for name in "abcd"), cpus=tuple(range(900, 904))
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


def gpu(name: str) -> Slot:
    return Slot("gpu", name)


def ready(watch: SlotWatch, milliseconds: int = 0) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(milliseconds))


def held(leases: Leases) -> tuple[Slot, ...]:
    return tuple(leases._locks)


Two = tuple[Leases, Leases]


def test_a_gpu_is_leased_once(launchers: Two) -> None:
    one, other = launchers
    assert one.acquire(gpus("a", "b")) == ()
    assert other.acquire(gpus("b")) == (gpu("b"),)
    assert other.acquire(gpus("c")) == ()
    one.release(gpus("a", "b"))
    assert other.acquire(gpus("b")) == ()
    assert (held(one), held(other)) == ((), (gpu("c"), gpu("b")))
    assert [slot.lease for slot in held(other)] == [gpus("c"), gpus("b")]


def test_a_lease_is_taken_whole_or_not_at_all(launchers: Two) -> None:
    one, other = launchers
    one.acquire(gpus("c"))
    assert other.acquire(gpus("d", "c", "a", "b")) == (gpu("c"),)
    assert held(other) == ()
    assert one.acquire(gpus("a", "b", "d")) == ()


def test_the_same_gpu_under_another_name_is_the_same_gpu() -> None:
    renamed = MACHINE._replace(gpus=(Gpu("0", f"{MARK}-b"),))
    one, other = Leases(MACHINE), Leases(renamed)
    assert one.acquire(gpus("b")) == ()
    assert other.acquire(gpus("0")) == (gpu("0"),)
    one.close()
    assert other.acquire(gpus("0")) == ()
    other.close()


def test_cores_are_locked_only_where_that_is_asked_for() -> None:
    free = Leases(MACHINE), Leases(MACHINE)
    pinned = Leases(MACHINE, lock_cpus=True), Leases(MACHINE, lock_cpus=True)
    lease = Lease((), (900, 901))
    assert [leases.acquire(lease) for leases in free] == [(), ()]
    assert pinned[0].acquire(lease) == ()
    assert pinned[1].acquire(Lease((), (901, 902))) == (Slot("cpu", "901"),)
    assert str(held(pinned[0])[0]) == "core 900"
    assert [slot.lease for slot in held(pinned[0])] == [Lease((), (900,)), Lease((), (901,))]
    for leases in (*free, *pinned):
        leases.close()


def test_release_and_close_may_be_repeated(launchers: Two) -> None:
    one, other = launchers
    one.acquire(gpus("a", "b"))
    one.release(gpus("a"))
    one.release(gpus("a"))
    assert held(one) == (gpu("b"),)
    one.close()
    one.close()
    assert other.acquire(gpus("a", "b")) == ()


@pytest.mark.parametrize("lease", [gpus("x"), gpus("a", "a"), gpus("a", "b")])
def test_what_is_no_lease_to_take(launchers: Two, lease: Lease) -> None:
    one, _ = launchers
    one.acquire(gpus("b"))
    with pytest.raises(ValueError, match="Lease"):
        one.acquire(lease)
    assert held(one) == (gpu("b"),)


def test_what_is_nothing_to_wait_for(launchers: Two) -> None:
    one, _ = launchers
    one.acquire(gpus("a"))
    for slot in (gpu("a"), gpu("x"), Slot("cpu", "900")):
        with pytest.raises(ValueError, match="is not held by another launcher"):
            one.watch(slot)


def test_a_watch_wakes_when_the_slot_is_released(launchers: Two) -> None:
    one, other = launchers
    one.acquire(gpus("a", "b"))
    watch = other.watch(gpu("a"))
    assert watch is other.watch(gpu("a"))
    one.release(gpus("b"))
    assert not ready(watch)
    one.release(gpus("a"))
    assert ready(watch)
    watch.close()
    watch.close()
    assert watch.fileno() == -1
    assert other.acquire(gpus("a")) == ()


def test_after_a_watch_was_closed_there_is_another(launchers: Two) -> None:
    one, other = launchers
    one.acquire(gpus("a"))
    first = other.watch(gpu("a"))
    first.close()
    second = other.watch(gpu("a"))
    assert second is not first
    assert not ready(second)


def test_a_slot_that_is_free_is_not_waited_for(launchers: Two) -> None:
    one, _ = launchers
    assert ready(one.watch(gpu("a")), 10_000)
    assert one.acquire(gpus("a")) == ()


@pytest.mark.parametrize("listening", [True, False])
def test_who_cannot_be_waited_for_is_tried_again(
    launchers: Two, listening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER", 0.01)
    address = f"\0lllaunch/gpu/{MARK}-a"
    waiting = []
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(address)
        if listening:
            foreign.listen(0)
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[0].connect(address)  # all that fit
        watch = launchers[0].watch(gpu("a"))
        assert ready(watch, 10_000)
        assert launchers[0].acquire(gpus("a")) == (gpu("a"),)
    for connection in waiting:
        connection.close()
    assert launchers[0].acquire(gpus("a")) == ()


def test_many_wait_for_one_slot(launchers: Two) -> None:
    launchers[0].acquire(gpus("a"))
    others = [Leases(MACHINE) for _ in range(200)]
    watches = [leases.watch(gpu("a")) for leases in others]
    assert not any(map(ready, watches))
    launchers[0].close()
    assert all(map(ready, watches))
    for leases in others:
        leases.close()


def test_what_the_system_refuses_is_told(launchers: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            if str(address).count("-b"):
                raise PermissionError(1, "Operation not permitted")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(LeaseFailed) as caught:
        launchers[0].acquire(gpus("a", "b"))
    assert str(caught.value) == "GPU b cannot be leased: Operation not permitted"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert held(launchers[0]) == ()

    def no_more(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_more)
    with pytest.raises(LeaseFailed, match="Too many open files"):
        launchers[0].watch(gpu("a"))


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
                assert {slot.name for slot in busy} <= foreign
                if not busy:
                    owners.update(dict.fromkeys(names, who))
            else:
                launchers[who].release(gpus(*names))
                for name in set(names) - foreign:
                    owners.pop(name, None)
            for number, leases in enumerate(launchers):
                own = {slot.name for slot in held(leases)}
                assert own == {name for name, owner in owners.items() if owner == number}
    finally:
        for leases in launchers:
            leases.close()
