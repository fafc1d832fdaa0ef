"""When workers count as stalled or as spinning, decided without processes and without waiting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.spec import StallScope
from lllaunch.watchdog.evidence import Frame, RankStack, Thread
from lllaunch.watchdog.findings import (
    Spinning,
    Stalled,
    is_of_all,
    kind_of,
    lasted,
    limit_of,
    suspects,
)
from lllaunch.watchdog.sampling import Usage
from lllaunch.watchdog.stall import (
    IDLE_BYTES,
    IDLE_SHARE,
    SpinDetector,
    StallDetector,
    look_interval,
)

SECOND = 1_000_000_000


def watched(
    looks: list[dict[int, Usage]],
    limit: float = 30.0,
    scope: StallScope = "group",
) -> list[Stalled | None]:
    """What a detector says to looks that are ten seconds apart, the first at 0."""
    detector = StallDetector(limit, scope, 0.0)
    return [detector.look(10.0 * index, look) for index, look in enumerate(looks)]


IDLE = {rank: Usage(cpu=5.0) for rank in (0, 1)}


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": 5.0 + 10 * IDLE_SHARE + 0.01},
        {"cpu": 5.0, "output": 1},
        {"cpu": 5.0, "beat": 7 * SECOND},
    ],
    ids=["cpu", "output", "heartbeat"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_sign_of_life_of_one_worker_is_enough_for_the_group(
    change: dict[str, float], rank: int
) -> None:
    alive = IDLE | {rank: Usage(**change)}  # type: ignore[arg-type]
    # the sign of life comes at 20, and stays as it was then
    found = watched([IDLE, IDLE, alive, alive, alive, alive])
    assert found == [None] * 5 + [Stalled((0, 1), 30.0, "group")]


def test_waking_up_now_and_then_is_no_sign_of_life() -> None:
    looks = [{0: Usage(cpu=0.9 * IDLE_SHARE * 10 * n)} for n in range(4)]
    assert watched(looks)[-1] == Stalled((0,), 30.0, "group")


def test_one_idle_rank_among_busy_ones_is_found_if_it_is_asked_for() -> None:
    looks = [{0: Usage(cpu=10.0 * n), 1: Usage(cpu=0.0)} for n in range(4)]
    assert watched(looks, scope="rank")[-1] == Stalled((1,), 30.0, "rank")
    assert watched(looks, scope="group")[-1] is None
    # ranks that ended are not waited for
    assert watched([*looks[:3], {1: looks[3][1]}])[-1] == Stalled((1,), 30.0, "group")


def test_uninterruptible_sleep_and_stopped_workers_are_told_apart() -> None:
    looks = {rank: Usage(5.0, state=state) for rank, state in enumerate("SDT")}
    found = watched([looks] * 4)[-1]
    assert found == Stalled((0, 1, 2), 30.0, "group", asleep=(1,), stopped=(2,))


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 3),
            st.builds(Usage, st.floats(0, 100), st.integers(0, 3), st.integers(0, 3)),
            max_size=4,
        ),
        max_size=20,
    ),
    st.sampled_from(["group", "rank"]),
)
def test_a_stall_is_never_shorter_than_the_limit_and_names_live_ranks(
    looks: list[dict[int, Usage]], scope: StallScope
) -> None:
    for look, found in zip(looks, watched(looks, limit=25.0, scope=scope), strict=True):
        if found is not None:
            assert found.seconds >= 25.0
            assert found.ranks
            assert set(found.ranks) <= set(look)
            if scope == "group":
                assert set(found.ranks) == set(look)


def test_looks_are_rare_and_a_short_limit_is_kept() -> None:
    assert [look_interval(limit) for limit in (3600.0, 60.0, 2.0)] == [180.0, 5.0, 0.5]


# Spinning

LIMIT = 600.0
HERE = (Frame("/a/train.py", 12, "step"), Frame("/a/train.py", 30, "<module>"))
THERE = (Frame("/a/train.py", 13, "step"), Frame("/a/train.py", 30, "<module>"))
# Two ranks, in one collective with another.
STANDS = {0: HERE, 1: THERE}

Frames = Mapping[int, tuple[Frame, ...]]
Standings = Mapping[int, RankStack]


class Spun(NamedTuple):
    """What came of a detector's life.

    Attributes:
        found: the first finding, with the moment; None if there was none.
        asked: moments at which it was asked where workers are.
    """

    found: tuple[float, Spinning] | None
    asked: list[float]


def busy(now: float, **more: object) -> dict[int, Usage]:
    """Two workers that use all the CPU there is, and do nothing else."""
    return {rank: Usage(cpu=now, **more) for rank in (0, 1)}  # type: ignore[arg-type]


def stands_at(
    frames: tuple[Frame, ...],
    others: tuple[tuple[Frame, ...], ...] = (),
    pid: int = 0,
    rank: int = 0,
) -> RankStack:
    """Where a worker is: its main thread, and its others."""
    threads = (Thread("MainThread", frames), *(Thread("loader", each) for each in others))
    return RankStack(rank, frames=frames, threads=threads, process=pid)


def standing(frames: Frames) -> Standings:
    """Workers without other threads."""
    return {rank: stands_at(each, rank=rank) for rank, each in frames.items()}


def spun(
    looks: Callable[[float], Mapping[int, Usage]] = busy,
    stands: Callable[[float], Standings] = lambda _: standing(STANDS),
    seconds: float = 3 * LIMIT,
    detector: SpinDetector | None = None,
) -> Spun:
    """Let a detector look as often as it wants to, until it finds something."""
    detector = detector or SpinDetector(LIMIT, 0.0, idle=False)
    now, asked = 0.0, []
    while now < seconds:
        detector.look(now, looks(now))
        if detector.wants_stacks:
            asked.append(now)
            finding = detector.compare(now, stands(now))
            if finding is not None:
                return Spun((now, finding), asked)
        now += detector.interval
    return Spun(None, asked)


def test_who_stands_still_for_so_long_spins_however_busy() -> None:
    end = spun()
    assert end.found is not None
    now, finding = end.found
    assert LIMIT <= now <= LIMIT * 1.06
    assert finding == Spinning((0, 1), now, len(end.asked))
    # where they are is asked in the second half only, about twenty times
    assert min(end.asked) >= LIMIT / 2
    assert 15 <= len(end.asked) <= 30
    pauses = {
        round(after - before, 6) for before, after in zip(end.asked, end.asked[1:], strict=False)
    }
    assert len(pauses) > 10


@pytest.mark.parametrize(
    ("lines", "answers", "read", "found"),
    [
        # lines of a log of its own, every so many seconds, and among answers of rank 0's store to
        # so many questions a second
        (1.0, 0, 0, False),
        (60.0, 0, 0, False),
        (1.0, 64, 0, False),
        (0.0, 512, 0, True),
        # what the background reads: fifty bytes a second for each of sixteen ranks
        (0.0, 0, 16 * 50, True),
        (0.0, 0, 2 * IDLE_BYTES, False),
    ],
)
def test_lines_are_moves_and_what_the_background_reads_and_writes_is_none(
    lines: float, answers: int, read: int, found: bool
) -> None:
    def looks(now: float) -> dict[int, Usage]:
        logged, answered = int(now // lines) if lines else 0, int(answers * now)
        written = 55 * logged + answered
        io = written + int(read * now)
        return busy(now, io=io, written=written, writes=logged + answered)

    end = spun(looks)
    assert (end.found is not None) is found
    assert bool(end.asked) is found


WAITS = (Frame("/usr/lib/python3.12/threading.py", 1149, "join"), *HERE)
SLEEPS = (Frame("/usr/lib/python3.12/threading.py", 359, "wait"), *THERE)
ME, CHILD = 100, 101


def lived(cpu: Callable[[float], dict[int, float]], *places: RankStack) -> bool:
    """Whether one worker that uses so much CPU, by process, spins; its places come in turn."""
    turns = itertools.cycle(places)

    def looks(now: float) -> dict[int, Usage]:
        return {0: Usage(sum(cpu(now).values()), state="S", own_cpu=cpu(now))}

    return spun(looks, lambda _: {0: next(turns)}).found is not None


@pytest.mark.parametrize(
    ("own", "below", "asked", "found"),
    [
        (1.0, 1.0, ME, True),
        # a thread that wakes up
        (0.01, 1.0, ME, False),
        # a shell script
        (0.0, 1.0, CHILD, True),
    ],
)
def test_what_a_program_below_a_worker_does_nobody_can_tell(
    own: float, below: float, asked: int, found: bool
) -> None:
    spins = lived(lambda now: {ME: own * now, CHILD: below * now}, stands_at(HERE, (), asked))
    assert spins is found


@pytest.mark.parametrize(
    ("main", "others", "found"),
    [
        (WAITS, (THERE,), False),
        (WAITS, (SLEEPS, THERE), False),
        # threads of C++ do it
        (WAITS, (), True),
        (WAITS, (SLEEPS,), True),
        # it is not waiting for that one
        (HERE, (THERE,), True),
    ],
)
def test_who_waits_for_a_thread_that_works_gets_somewhere(
    main: tuple[Frame, ...], others: tuple[tuple[Frame, ...], ...], found: bool
) -> None:
    assert lived(lambda now: {ME: now}, stands_at(main, others, ME)) is found


@pytest.mark.parametrize(("every", "found"), [(10, True), (2, False)], ids=str)
def test_a_thread_that_moves_is_a_move_and_one_that_only_wakes_up_is_none(
    every: int, found: bool
) -> None:
    works, sleeps = (stands_at(HERE, (place,), ME) for place in (THERE, SLEEPS))
    assert lived(lambda now: {ME: now}, works, *[sleeps] * (every - 1)) is found


@pytest.mark.parametrize(
    ("states", "frames", "found"),
    [
        ("RR", {0: HERE}, False),
        ("RR", {0: HERE, 1: ()}, False),
        ("RD", {0: HERE}, True),
        ("tR", {1: HERE}, True),
        ("SS", STANDS, True),
        # nobody is seen at any line
        ("DD", {}, False),
    ],
)
def test_where_it_is_not_known_nothing_is_found_unless_they_cannot_move(
    states: str, frames: Frames, found: bool
) -> None:
    def looks(now: float) -> dict[int, Usage]:
        return {rank: Usage(now, state=state) for rank, state in enumerate(states)}

    end = spun(looks, lambda _: standing(frames))
    assert (end.found is not None) is found
    if not found:
        # once in half of the time
        assert len(end.asked) <= 6


@pytest.mark.parametrize("idle", [True, False])
def test_who_does_nothing_at_all_is_left_to_those_who_look_for_stalls(idle: bool) -> None:
    # a thread that wakes up now and then
    end = spun(
        lambda now: {0: Usage(0.01 * now), 1: Usage(5.0)},
        detector=SpinDetector(LIMIT, 0.0, idle=idle),
    )
    assert (end.found is not None) is idle


def test_it_counts_from_the_end_of_the_warmup() -> None:
    end = spun(seconds=2000.0, detector=SpinDetector(LIMIT, 1000.0, idle=False))
    assert end.found is not None
    assert end.found[0] >= 1000.0 + LIMIT


def test_a_few_looks_prove_nothing() -> None:
    detector = SpinDetector(1.0, 0.0, idle=True)
    detector.look(0.0, busy(0.0))
    found = []
    for number in range(6):
        detector.look(10.0 + number, busy(0.0))
        found.append(detector.compare(10.0 + number, standing(STANDS)))
    assert [finding is not None for finding in found] == [False] * 4 + [True] * 2
    assert found[-1] == Spinning((0, 1), 15.0, 6)


moves = st.lists(
    st.tuples(
        st.sampled_from(["nothing", "output", "beat", "io", "rank", "line"]),
        st.floats(1.0, 400.0),
    ),
    max_size=12,
)


@given(moves)
def test_nobody_spins_who_has_moved_within_the_limit(changes: list[tuple[str, float]]) -> None:
    """Whatever moves, and when: a finding means that nothing did for the whole time."""
    moments, now = [], 0.0
    for what, after in changes:
        now += after
        moments.append((now, what))

    def count(what: str, now: float) -> int:
        return sum(each == what and moment <= now for moment, each in moments)

    def looks(now: float) -> dict[int, Usage]:
        one = Usage(
            now,
            state="R",
            io=10**6 * count("io", now),
            output=count("output", now),
            beat=count("beat", now),
        )
        return {rank: one for rank in range(20) if rank >= count("rank", now)}

    def stands(now: float) -> Standings:
        where = (Frame("/a/b.py", count("line", now), "f"),)
        return dict.fromkeys(range(20), stands_at(where))

    end = spun(looks, stands, seconds=10 * LIMIT)
    assert end.found is not None
    found, finding = end.found
    assert finding.seconds >= LIMIT
    # somebody who moves is noticed at the next look; one who is elsewhere, in the second half
    for moment, what in moments:
        if what not in {"nothing", "line"}:
            assert not found - finding.seconds < moment <= found
        elif what == "line":
            assert not end.asked[-finding.looks] < moment <= found


def test_it_reads_and_counts_as_what_it_is() -> None:
    finding = Spinning((0, 1), 1800.0, 21)
    assert f"all workers {finding}" == (
        "all workers got nowhere: no output, no heartbeat and less than 1 KiB/s of I/O for 30 min, "
        "at the same line of Python in each of 21 looks"
    )
    assert (kind_of(finding), limit_of(finding), lasted(finding)) == ("hang", "spin", 1800.0)
    assert is_of_all(finding)
    assert suspects(finding) == (0, 1)


def test_a_stall_is_long_beside_the_steps_before_it() -> None:
    def found(longest: float | None, seconds: float) -> Stalled | None:
        detector = StallDetector(60.0, "group", 0.0, lambda: longest)
        return [detector.look(now, {0: Usage(5.0)}) for now in (0.0, seconds)][-1]

    assert found(None, 1e6) is None
    assert found(0.1, 59.0) is None
    assert found(0.1, 60.0) == Stalled((0,), 60.0, "group")
    assert found(30.0, 599.0) is None
    assert found(30.0, 600.0) == Stalled((0,), 600.0, "group")
