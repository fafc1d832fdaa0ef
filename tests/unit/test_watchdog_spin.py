"""When a group counts as spinning, decided without processes and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.watchdog.findings import (
    Spinning,
    is_of_all,
    kind_of,
    lasted,
    limit_of,
    suspects,
)
from lllaunch.watchdog.stacks.frames import Frame
from lllaunch.watchdog.stall import IDLE_BYTES, SpinDetector, Standing, WorkerActivity

LIMIT = 600.0
HERE = (Frame("/a/train.py", 12, "step"), Frame("/a/train.py", 30, "<module>"))
THERE = (Frame("/a/train.py", 13, "step"), Frame("/a/train.py", 30, "<module>"))
# Two ranks, in one collective with another.
STANDS = {0: HERE, 1: THERE}

Frames = Mapping[int, tuple[Frame, ...]]


class Watched(NamedTuple):
    """What came of a detector's life.

    Attributes:
        found: the first finding, with the moment; None if there was none.
        asked: moments at which it was asked where workers are.
        looks: how many looks there were.
    """

    found: tuple[float, Spinning] | None
    asked: list[float]
    looks: int


def busy(now: float, **more: object) -> dict[int, WorkerActivity]:
    """Two workers that use all the CPU there is, and do nothing else."""
    return {rank: WorkerActivity(cpu=now, **more) for rank in (0, 1)}  # type: ignore[arg-type]


def standing(frames: Frames) -> dict[int, Standing]:
    """Workers without other threads."""
    return {rank: Standing(each) for rank, each in frames.items()}


def watched(
    looks: Callable[[float], Mapping[int, WorkerActivity]] = busy,
    frames: Callable[[float], Frames] = lambda _: STANDS,
    seconds: float = 3 * LIMIT,
    starts: float = 0.0,
    detector: SpinDetector | None = None,
) -> Watched:
    """Let a detector look as often as it wants to, until it finds something."""
    detector = detector or SpinDetector(LIMIT, starts, idle=False)
    now, asked, count = 0.0, [], 0
    while now < seconds:
        detector.look(now, looks(now))
        count += 1
        if detector.wants_stacks:
            asked.append(now)
            finding = detector.compare(now, standing(frames(now)))
            if finding is not None:
                return Watched((now, finding), asked, count)
        now += detector.interval
    return Watched(None, asked, count)


def test_who_stands_still_for_so_long_spins_however_busy() -> None:
    end = watched()
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
    "looks",
    [
        pytest.param(lambda now: busy(now, output=int(now // 250)), id="output"),
        pytest.param(lambda now: busy(now, beat=int(now // 250)), id="heartbeats"),
        pytest.param(lambda now: busy(now, io=int(now // 250) * 10**6), id="I/O in bursts"),
        pytest.param(lambda now: busy(now, io=int(2 * IDLE_BYTES * now)), id="I/O all the time"),
        pytest.param(lambda now: busy(now, io=-int(now // 250) * 10**6), id="who read has ended"),
        pytest.param(
            lambda now: {**busy(now), 1: WorkerActivity(0.0, output=int(now // 250))}, id="of one"
        ),
        pytest.param(
            lambda now: {rank: WorkerActivity(now) for rank in range(9 - int(now // 250))},
            id="one after the other ends",
        ),
    ],
)
def test_who_moves_is_not_even_asked(
    looks: Callable[[float], Mapping[int, WorkerActivity]],
) -> None:
    assert watched(looks, lambda _: dict.fromkeys(range(9), HERE)) == (None, [], 60)


def test_what_the_background_reads_hides_nothing() -> None:
    # fifty bytes a second for each of sixteen ranks
    end = watched(lambda now: busy(now, io=int(16 * 50 * now)))
    assert end.found is not None


@pytest.mark.parametrize("every", [1.0, 6.0, 60.0])
def test_a_line_to_a_log_of_its_own_now_and_then_is_a_move(every: float) -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        lines = int(now // every)
        return busy(now, io=55 * lines, written=55 * lines, writes=lines)

    assert watched(looks).asked == []


@pytest.mark.parametrize(
    ("bytes_each", "in_a_second"),
    [
        # answers of the store on rank 0 to questions of so many ranks
        (1, 1),
        (1, 512),
        # a thread that wakes another one up
        (8, 1),
    ],
)
def test_what_the_background_writes_hides_nothing(bytes_each: int, in_a_second: int) -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        writes = int(in_a_second * now)
        return busy(now, written=bytes_each * writes, writes=writes)

    assert watched(looks).found is not None


def test_lines_among_what_the_background_writes_are_seen() -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        lines, answers = int(now), int(64 * now)
        return busy(now, written=55 * lines + answers, writes=lines + answers)

    assert watched(looks).asked == []


WAITS = (Frame("/usr/lib/python3.12/threading.py", 1149, "join"), *HERE)
SLEEPS = (Frame("/usr/lib/python3.12/threading.py", 359, "wait"), *THERE)
ME, CHILD = 100, 101


def lived(
    cpu: Callable[[float], dict[int, float]], place: Callable[[int], Standing]
) -> Spinning | None:
    """Let one worker use so much CPU, by process, and be where it is at each look."""
    detector = SpinDetector(LIMIT, 0.0, idle=False)
    now, count, found = 0.0, 0, None
    while now < 3 * LIMIT and found is None:
        used = cpu(now)
        detector.look(now, {0: WorkerActivity(sum(used.values()), state="S", own_cpu=used)})
        if detector.wants_stacks:
            found = detector.compare(now, {0: place(count)})
            count += 1
        now += detector.interval
    return found


@pytest.mark.parametrize(
    ("own", "below", "found"),
    [
        (1.0, 0.0, True),
        (1.0, 1.0, True),
        # a thread that wakes up
        (0.01, 1.0, False),
        (0.0, 1.0, False),
    ],
)
def test_what_a_program_below_a_worker_does_nobody_can_tell(
    own: float, below: float, found: bool
) -> None:
    end = lived(lambda now: {ME: own * now, CHILD: below * now}, lambda _: Standing(HERE, (), ME))
    assert (end is not None) is found


def test_of_a_shell_script_the_program_below_it_counts() -> None:
    assert lived(lambda now: {ME: 0.0, CHILD: now}, lambda _: Standing(HERE, (), CHILD)) is not None


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
    end = lived(lambda now: {ME: now}, lambda _: Standing(main, others, ME))
    assert (end is not None) is found


@pytest.mark.parametrize(
    ("every", "found"), [(1, True), (10, True), (3, False), (2, False)], ids=str
)
def test_a_thread_that_moves_is_a_move_and_one_that_only_wakes_up_is_none(
    every: int, found: bool
) -> None:
    def place(count: int) -> Standing:
        return Standing(HERE, (THERE if every > 1 and count % every == 0 else SLEEPS,), ME)

    assert (lived(lambda now: {ME: now}, place) is not None) is found


def test_who_is_elsewhere_in_one_look_of_many_does_not_spin() -> None:
    asked: list[float] = []

    def frames(now: float) -> Frames:
        asked.append(now)
        return STANDS if len(asked) % 10 else {0: HERE, 1: HERE}

    end = watched(frames=frames)
    assert end.found is None
    # and is left alone for half of the time after that
    pauses = [after - before for before, after in zip(asked[9::10], asked[10::10], strict=False)]
    assert pauses
    assert min(pauses) >= LIMIT / 2


@pytest.mark.parametrize(
    ("states", "frames", "found"),
    [
        ("RR", {0: HERE}, False),
        ("RR", {0: HERE, 1: ()}, False),
        ("RR", {}, False),
        ("RD", {0: HERE}, True),
        ("RT", {0: HERE}, True),
        ("tR", {1: HERE}, True),
        ("SS", STANDS, True),
        # nobody is seen at any line
        ("DD", {}, False),
    ],
)
def test_where_it_is_not_known_nothing_is_found_unless_they_cannot_move(
    states: str, frames: Frames, found: bool
) -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        return {rank: WorkerActivity(now, state=state) for rank, state in enumerate(states)}

    end = watched(looks, lambda _: frames)
    assert (end.found is not None) is found
    if not found:
        # once in half of the time
        assert len(end.asked) <= 6


def test_one_that_wakes_up_elsewhere_has_moved() -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        return {0: WorkerActivity(now, state="D" if 420 < now < 480 else "R")}

    assert watched(looks, lambda _: {0: HERE}).found is not None
    found = watched(looks, lambda now: {0: HERE} if now < 450 else {0: THERE}, seconds=LIMIT * 1.1)
    assert found.found is None


@pytest.mark.parametrize("idle", [True, False])
def test_who_does_nothing_at_all_is_left_to_those_who_look_for_stalls(idle: bool) -> None:
    def looks(now: float) -> dict[int, WorkerActivity]:
        # a thread that wakes up now and then
        return {0: WorkerActivity(0.01 * now), 1: WorkerActivity(5.0)}

    detector = SpinDetector(LIMIT, 0.0, idle=idle)
    end = watched(looks, detector=detector)
    assert (end.found is not None) is idle
    assert bool(end.asked) is idle


def test_who_becomes_busy_late_is_looked_at_for_as_long() -> None:
    # idle for the first two thirds
    end = watched(lambda now: {0: WorkerActivity(max(0.0, now - 400.0))}, lambda _: {0: HERE})
    assert end.found is not None
    assert end.found[0] - end.asked[0] >= 0.4 * LIMIT
    assert end.asked[0] > 400.0


def test_it_counts_from_the_end_of_the_warmup() -> None:
    end = watched(starts=1000.0, seconds=2000.0)
    assert end.found is not None
    assert end.found[0] >= 1000.0 + LIMIT
    assert min(end.asked) >= 1000.0 + LIMIT / 2


def test_what_was_before_a_pause_of_all_does_not_count() -> None:
    detector = SpinDetector(LIMIT, 0.0, idle=True)
    watched(detector=detector, seconds=LIMIT * 0.9)
    detector.forgive(LIMIT * 0.9)
    assert detector.compare(LIMIT * 0.9, standing(STANDS)) is None
    detector.look(LIMIT * 1.2, busy(0.0))
    assert not detector.wants_stacks
    detector.look(LIMIT * 1.5, busy(0.0))
    assert detector.wants_stacks
    assert detector.compare(LIMIT * 1.5, standing(STANDS)) is None


def test_a_few_looks_prove_nothing() -> None:
    detector = SpinDetector(1.0, 0.0, idle=True)
    detector.look(0.0, busy(0.0))
    found = []
    for number in range(6):
        detector.look(10.0 + number, busy(0.0))
        found.append(detector.compare(10.0 + number, standing(STANDS)))
    assert [finding is not None for finding in found] == [False] * 4 + [True] * 2
    assert found[-1] == Spinning((0, 1), 15.0, 6)
    # nor do many in a moment
    detector = SpinDetector(LIMIT, 0.0, idle=True)
    detector.look(0.0, busy(0.0))
    for number in range(99):
        detector.look(LIMIT + number, busy(0.0))
        assert detector.compare(LIMIT + number, standing(STANDS)) is None


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

    def looks(now: float) -> dict[int, WorkerActivity]:
        one = WorkerActivity(
            now, count("output", now), count("beat", now), "R", 10**6 * count("io", now)
        )
        return {rank: one for rank in range(20) if rank >= count("rank", now)}

    def frames(now: float) -> Frames:
        where = (Frame("/a/b.py", count("line", now), "f"),)
        return dict.fromkeys(range(20), where)

    end = watched(looks, frames, seconds=10 * LIMIT)
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
