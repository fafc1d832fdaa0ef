"""The slots of a machine, taken and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.sweep.pool import Lease, Need, Pool, fits, never_fits, without


def pool(gpus: int = 0, cpus: int = 0) -> Pool:
    return Pool(Lease(tuple(str(gpu) for gpu in range(gpus)), tuple(range(cpus))))


NONE = "; launch.resources.cpus_per_proc=0 asks for none"


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Need(2, 8), ""),
        (Need(), ""),
        (Need(3, 8), "needs 3 GPUs, of which the sweep has 2"),
        (Need(0, 9), f"needs 9 CPU slots, of which the sweep has 8{NONE}"),
        (
            Need(4, 9),
            f"needs 4 GPUs, of which the sweep has 2, and 9 CPU slots, of which it has 8{NONE}",
        ),
    ],
)
def test_what_never_fits_says_why(need: Need, why: str) -> None:
    assert never_fits(need, Need(2, 8)) == why


def test_one_gpu_is_called_one_gpu() -> None:
    assert never_fits(Need(1, 0), Need(0, 8)) == "needs 1 GPU, of which the sweep has 0"


def test_what_is_left_is_never_less_than_nothing() -> None:
    assert without(Need(1, 8), Need(2, 3)) == Need(0, 5)
    assert fits(Need(0, 5), Need(0, 5))
    assert not fits(Need(1, 0), Need(0, 5))


def test_the_lowest_slots_come_first() -> None:
    slots = pool(4, 8)
    assert slots.take(Need(1, 2)) == Lease(("0",), (0, 1))
    assert slots.take(Need(2, 3)) == Lease(("1", "2"), (2, 3, 4))
    assert slots.free == Need(1, 3)


def test_neighbours_come_together_where_there_are_enough() -> None:
    slots = pool(0, 8)
    first = slots.take(Need(0, 1))
    slots.take(Need(0, 1))
    slots.give(first)
    # Core 0 is free, and 2 to 7.
    assert slots.take(Need(0, 3)).cpus == (2, 3, 4)


def test_the_tightest_gap_is_filled_first() -> None:
    slots = pool(8)
    first = slots.take(Need(4))
    slots.take(Need(1))
    slots.give(first)
    # Free: 0 to 3 and 5 to 7. The longer run stays whole.
    assert slots.take(Need(2)).gpus == ("5", "6")
    assert slots.take(Need(4)).gpus == ("0", "1", "2", "3")


def test_scattered_slots_are_better_than_none() -> None:
    slots = pool(6)
    singles = [slots.take(Need(1)) for _ in range(6)]
    for lease in singles[::2]:
        slots.give(lease)
    assert slots.take(Need(3)).gpus == ("0", "2", "4")


def test_gpus_are_neighbours_in_the_order_of_the_environment() -> None:
    slots = Pool(Lease(("7", "GPU-ab", "2"), ()))
    assert slots.take(Need(2)).gpus == ("7", "GPU-ab")


def test_cores_are_neighbours_by_number() -> None:
    slots = Pool(Lease((), (17, 0, 2, 16, 18)))
    assert slots.take(Need(0, 2)).cpus == (16, 17)
    assert slots.take(Need(0, 2)).cpus == (0, 2)


@pytest.mark.parametrize("slots", [Lease(("0", "0"), ()), Lease((), (3, 3))])
def test_a_slot_has_one_name(slots: Lease) -> None:
    with pytest.raises(ValueError, match="named twice"):
        Pool(slots)


def test_slots_of_others_are_out_until_they_are_free() -> None:
    slots = pool(4, 4)
    lease = slots.take(Need(2, 2))
    slots.give(lease, lost=Lease(("1",), (0,)))
    assert slots.free == Need(3, 3) == slots.ours
    assert slots.take(Need(2, 0)).gpus == ("2", "3")
    slots.regain(Lease(("1", "3", "99"), (0, 2)))
    assert slots.free == Need(2, 4)
    assert slots.ours == slots.size == Need(4, 4)


@given(
    st.sets(st.integers(0, 200), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 50)), max_size=60),
)
def test_leases_are_disjoint_and_compact_whatever_the_order(
    cores: set[int], steps: list[tuple[int, bool, int]]
) -> None:
    slots = Pool(Lease((), tuple(cores)))
    free = set(cores)
    held: list[Lease] = []
    for count, give, which in steps:
        if give and held:
            lease = held.pop(which % len(held))
            slots.give(lease)
            free |= set(lease.cpus)
        elif count <= len(free):
            runs = {core for core in free if set(range(core, core + count)) <= free}
            lease = slots.take(Need(0, count))
            assert len(lease.cpus) == count
            assert set(lease.cpus) <= free
            assert list(lease.cpus) == sorted(lease.cpus)
            if runs and count:
                assert lease.cpus[0] in runs
                assert lease.cpus[-1] == lease.cpus[0] + count - 1
            elif count:
                assert list(lease.cpus) == sorted(free)[:count]
            free -= set(lease.cpus)
            held.append(lease)
        assert slots.free == Need(0, len(free))
