"""How far workers are, by what they say or print, and when they get no further."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch import heartbeats
from lllaunch.heartbeats import HEARTBEAT, ProgressRecord, make_places, place_of, progress
from lllaunch.spec import ProgressLimit
from lllaunch.watchdog.findings import NotFinite, ProgressMissing, Unchanged, is_of_all, limit_of
from lllaunch.watchdog.progress import (
    Captured,
    OtherOutput,
    Progress,
    ProgressDetector,
    ProgressTracker,
    Shown,
)
from lllaunch.watchdog.sampling import Usage

LIVE = {0: Usage(0.0)}


def record(moment: float, step: float, total: float | None = None, **metrics: float) -> Any:
    return ProgressRecord(int(moment * 1e9), step, total, metrics)


def bar(
    step: float, total: float | None = 10.0, name: str = "", depth: int = 0, **more: Any
) -> Shown:
    return Shown(name, step, total, depth, **more)


def tracker(*shown: Any, now: float = 1.0) -> ProgressTracker:
    """One that has seen these of rank 0, a second apart."""
    found = ProgressTracker()
    for number, each in enumerate(shown):
        found.show(0, 0, [each], now + number)
    return found


def step_of(found: ProgressTracker, now: float = 100.0) -> tuple[float, float | None]:
    return found.at(now)[0][:2]


# What counts


def test_the_rate_and_the_time_that_is_left() -> None:
    found = ProgressTracker()
    assert found.at(0.0) == {}
    found.say(0, record(10.0, 100, 1000), 10.0)
    assert found.at(10.0) == {0: Progress(100.0, 1000.0)}
    found.say(0, record(30.0, 140, 1000, loss=0.5), 31.0)
    assert found.at(35.0) == {0: Progress(140.0, 1000.0, 2.0, 425.0, 5.0, {"loss": 0.5})}
    # said long ago
    assert found.at(30.0 + 1000)[0][3:5] == (0.0, 1000.0)


def test_the_rate_is_that_of_late() -> None:
    found = ProgressTracker()
    for second in range(0, 1000, 10):
        found.say(0, record(second + 1, second), second + 1)
    for second in range(1000, 1300, 10):
        found.say(0, record(second + 1, 10 * second), second + 1)
    assert found.at(1300.0)[0].rate == 10.0
    # and of the last two steps where each takes longer than that
    slow = ProgressTracker()
    for step in range(3):
        slow.say(0, record(1 + 600 * step, step), 1 + 600 * step)
    assert slow.at(1300.0)[0].rate == pytest.approx(1 / 600)


OTHER = OtherOutput()
TRAINING = [bar(1000, 1000, "download"), bar(1, 500), bar(40, 500), bar(2, 10, "evaluate")]


def test_what_a_rank_says_counts_alone_from_then_on() -> None:
    found = tracker(bar(3))
    assert step_of(found) == (3.0, 10.0)
    found.say(0, record(5.0, 1200), 5.0)
    found.show(0, 0, [bar(4)], 6.0)
    assert step_of(found) == (1200.0, None)
    assert found.furthest() == 1200.0
    assert tracker(*TRAINING).furthest() == 40.0


@pytest.mark.parametrize(
    ("shown", "step"),
    [
        # of bars within each other the outer one, else the one that shows the longest
        ([bar(1, 3, "epochs"), bar(7, 9, "batches", 1), bar(8, 9, "batches", 1)], (1.0, 3.0)),
        (TRAINING, (2.0, 10.0)),
        # over the epochs that it tells
        ([bar(3, 5, "Epoch #", epoch=0), bar(4, 5, "Epoch #", epoch=2)], (14.0, None)),
        ([bar(3, 5, epoch=1, epochs=10), bar(1, 5, epoch=2, epochs=10)], (6.0, 50.0)),
        # one that begins anew goes on counting
        ([*map(bar, range(11)), bar(0)], (10.0, None)),
        # one that is not full, whatever is printed
        ([bar(3, 4), OTHER], (3.0, 4.0)),
        ([bar(5, 5, epoch=0), OTHER], (5.0, None)),
        ([bar(5, 5, epoch=1, epochs=2), OTHER], (5.0, 10.0)),
        # a loop that goes on counts on
        ([bar(10), OTHER, bar(1)], (11.0, None)),
    ],
)
def test_the_step_that_bars_show(shown: list[Any], step: tuple[float, float | None]) -> None:
    assert step_of(tracker(*shown)) == step


def test_of_bars_and_numbers_no_more_than_some_are_kept() -> None:
    found = tracker(bar(1, metrics={"loss": 1.0, "lr": 0.1}), Shown(metrics={"loss": 0.5}))
    assert found.at(5.0)[0].metrics == {"loss": 0.5, "lr": 0.1}
    found.show(0, 0, [bar(2, metrics={f"m{number}": 0.0 for number in range(100)})], 3.0)
    assert len(found.at(5.0)[0].metrics) == 32


@pytest.mark.parametrize("other", [OTHER, Shown(metrics={"loss": 0.5}), Captured({"loss": 0.5})])
def test_a_full_bar_is_the_step_until_something_else_is_printed(other: Any) -> None:
    seen = tracker(bar(4, 4, "Loading checkpoint shards"))
    assert step_of(seen) == (4.0, 4.0)
    seen.show(0, 1, [other], 3.0)
    assert seen.at(4.0) == {}
    assert (seen.step, seen.furthest()) == (None, None)
    seen.show(0, 0, [bar(1, 9, "train"), OTHER], 5.0)
    assert step_of(seen) == (1.0, 9.0)
    assert tracker(bar(5, 5, epoch=2, epochs=2), other).at(9.0) == {}


# When there is none


WITHIN = ProgressLimit(within=60.0)


def found_after(seconds: float, seen: ProgressTracker, limit: ProgressLimit = WITHIN) -> Any:
    return ProgressDetector(limit, seen, 0.0).look(seconds, LIVE)


def test_the_first_progress_is_waited_for() -> None:
    limit = ProgressLimit(first_within=60.0)
    nothing = ProgressTracker()
    assert found_after(59.0, nothing, limit) is None
    found = found_after(61.0, nothing, limit)
    assert found == ProgressMissing(61.0, first=True)
    assert is_of_all(found)
    assert limit_of(found) == "progress"
    assert str(found) == "hung: no progress in the first 1 min 01 s"
    assert found_after(999.0, tracker(bar(0)), limit) is None
    assert found_after(999.0, nothing) is None


def test_progress_must_come_again() -> None:
    seen = tracker(bar(1), bar(7), now=10.0)
    assert found_after(70.0, seen) is None
    found = found_after(71.0, seen)
    assert found == ProgressMissing(60.0, 7.0)
    assert not is_of_all(found)
    assert str(found) == "hung: no progress for 1 min, at step 7"


def test_a_bar_that_is_full_demands_no_more() -> None:
    limit = ProgressLimit(within=60.0, first_within=10.0)
    seen = tracker(bar(99, 100), bar(100, 100))
    assert found_after(999.0, seen, limit) is None
    seen.show(0, 0, [OTHER], 20.0)
    assert found_after(999.0, seen, limit) is None
    seen.show(0, 0, [bar(1, 10, "train")], 1000.0)
    assert found_after(1059.0, seen, limit) is None
    assert found_after(1060.0, seen, limit) == ProgressMissing(60.0, 1.0)
    # calls demand more at their total
    seen.say(0, record(1130.0, 7, 7), 1130.0)
    assert isinstance(found_after(1200.0, seen, limit), ProgressMissing)


def test_any_rank_and_any_bar_that_moves_is_progress() -> None:
    seen = tracker(bar(1), now=10.0)
    seen.show(1, 0, [bar(3, name="validation", depth=1)], 60.0)
    assert found_after(100.0, seen) is None
    seen.say(2, record(100.0, 5), 100.0)
    assert found_after(159.0, seen) is None
    assert isinstance(found_after(161.0, seen), ProgressMissing)


def test_a_step_that_stays_the_same_is_no_progress_and_other_numbers_may() -> None:
    seen, moving = ProgressTracker(), ProgressTracker()
    for second in range(1, 100):
        seen.say(0, record(second, 1200, loss=1 / second), second)
        moving.say(0, record(second, second, lr=0.1), second)
        moving.show(0, 0, [bar(second, 1000, metrics={"lr": 0.1})], second)
    found = found_after(99.0, seen)
    assert found == Unchanged("step", 1200.0, 98.0)
    assert str(found) == "got nowhere: step has been 1200 for 1 min 38 s"
    assert found_after(99.0, moving) is None


def captures(lines: Callable[[int], dict[str, float]], seconds: int = 100) -> ProgressTracker:
    found = ProgressTracker(pattern="...")
    for second in range(1, seconds):
        found.show(0, 0, [Captured(lines(second))], second)
    return found


def test_with_a_pattern_only_what_matches_is_progress() -> None:
    limit = ProgressLimit("loss", within=60.0)
    seen = captures(lambda second: {"loss": second})
    seen.show(0, 0, [bar(9)], 150.0)
    seen.say(0, record(150.0, 7), 150.0)
    assert found_after(158.0, seen, limit) is None
    assert found_after(160.0, seen, limit) == ProgressMissing(61.0, 7.0)
    # one without groups is to match
    assert found_after(99.0, captures(lambda _: {}), limit) is None
    assert found_after(161.0, captures(lambda _: {}), limit) == ProgressMissing(62.0)


def test_the_step_that_a_pattern_captures_is_to_change() -> None:
    limit = ProgressLimit("...", within=60.0)
    step = captures(lambda second: {"step": 7, "loss": second})
    assert found_after(99.0, step, limit) == Unchanged("step", 7.0, 98.0)
    loss = captures(lambda _: {"loss": 0.69})
    assert found_after(99.0, loss, limit) is None
    sizes = captures(lambda second: {"step": second, "total": 500, "epoch": 1, "epochs": 3})
    assert found_after(99.0, sizes, limit) is None
    assert step_of(sizes) == (99.0, 500.0)


def test_a_name_that_a_worker_chose_steers_no_terminal() -> None:
    assert str(NotFinite(0, "\x1b[2Jloss\n", "nan")).isprintable()
    assert str(Unchanged("\x1b[2J" + 99 * "x", 1.0, 1.0)).isprintable()


def test_time_in_which_nobody_ran_does_not_count() -> None:
    detector = ProgressDetector(WITHIN, tracker(bar(1)), 0.0)
    detector.forgive(1000.0)
    assert detector.look(1059.0, LIVE) is None
    assert detector.look(1060.0, LIVE) == ProgressMissing(60.0, 1.0)
    assert detector.look(9999.0, {}) is None


def test_what_was_printed_and_not_read_is_held_against_nobody() -> None:
    seen = captures(lambda _: {"loss": 0.69})
    seen.skip(100.0)
    assert found_after(159.0, seen) is None
    untold = ProgressTracker()
    untold.skip(100.0)
    assert untold.moved is None


# Numbers that are none any more


def test_nan_is_named_once_with_the_step() -> None:
    seen = ProgressTracker()
    seen.say(0, record(1.0, 1100, loss=0.5), 1.0)
    assert seen.not_finite() == []
    seen.say(0, record(2.0, 1200, loss=math.nan, lr=0.1), 2.0)
    seen.say(1, record(2.0, 1201, loss=math.nan), 2.0)
    (found,) = seen.not_finite()
    assert found == NotFinite(0, "loss", "nan", 1200.0)
    assert str(found) == "says that loss is nan at step 1200"
    assert limit_of(found) == "progress"
    seen.say(0, record(3.0, 1300, loss=math.nan), 3.0)
    assert seen.not_finite() == []


def test_of_steps_between_two_looks_the_first_nan_is_named() -> None:
    seen = tracker()
    seen.say(0, record(2.0, 1210, loss=math.nan)._replace(wrong=1203.0), 2.0)
    assert [str(each) for each in seen.not_finite()] == ["says that loss is nan since step 1203"]


def test_who_begins_with_nan_is_named_too_but_not_for_infinity() -> None:
    seen = ProgressTracker(pattern="...")
    seen.say(0, record(1.0, 1, loss=math.nan, best=math.inf), 1.0)
    seen.show(1, 0, [Captured({"grad": math.nan, "least": math.inf})], 1.0)
    assert [each.name for each in seen.not_finite()] == ["loss", "grad"]
    seen.say(0, record(2.0, 2, best=3.0), 2.0)
    seen.say(0, record(3.0, 3, best=-math.inf), 3.0)
    assert seen.not_finite() == [NotFinite(0, "best", "-inf", 3.0)]


def test_in_a_bar_a_number_must_have_been_one() -> None:
    seen = tracker(bar(1, metrics={"val_loss": math.nan, "loss": 0.5}))
    assert seen.not_finite() == []
    seen.show(0, 0, [bar(2, metrics={"val_loss": math.nan, "loss": math.nan})], 3.0)
    (found,) = seen.not_finite()
    assert found == NotFinite(0, "loss", "nan", 2.0, exact=True, chosen=False)
    assert str(found) == "says that loss is nan since step 2"


def test_a_line_of_a_trainer_has_no_placeholders() -> None:
    seen = tracker(Shown(metrics={"loss": math.nan, "grad_norm": math.inf}))
    assert seen.not_finite() == [NotFinite(0, "loss", "nan", chosen=False)]
    # what the code tells is said though a library has printed it
    seen.say(0, record(2.0, 7, loss=math.nan), 2.0)
    assert seen.not_finite() == [NotFinite(0, "loss", "nan", 7.0)]
    seen.show(0, 0, [Shown(metrics={"loss": math.nan})], 3.0)
    assert seen.not_finite() == []


# Read from files and memory


def test_what_is_said_and_what_is_printed_are_seen_in_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "heartbeats")
    memory = make_places(path, 2)
    monkeypatch.setenv(HEARTBEAT, place_of(path, 0))
    monkeypatch.setattr(heartbeats, "_places", [])
    out, err = tmp_path / "out", tmp_path / "err"
    reader = ProgressTracker(memory, {0: (str(out), str(err)), 1: (str(out),)})
    reader.read(1.0, [0, 1])
    assert reader.at(1.0) == {}
    err.write_text("\r 50%|##  | 5/10 [00:05<00:05,  1.00it/s]")
    out.write_text("{'loss': 0.25}\n")
    reader.read(2.0, [0])
    assert reader.at(2.0)[0].step == 5.0
    assert reader.at(2.0)[0].metrics == {"loss": 0.25}
    progress(77, 100)
    reader.read(3.0, [0])
    assert reader.at(3.0)[0][:2] == (77.0, 100.0)
    memory.close()


def test_a_bar_that_is_drawn_below_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reader = ProgressTracker(None, {0: (str(out),)})
    outer, inner = "| 1/3 [00:01<00:02,  1.00it/s]", "| 4/9 [00:01<00:02,  1.00it/s]"
    out.write_text(f"\repochs:  33%|#  {outer}\n\rbatches:  44%|## {inner}")
    reader.read(1.0, [0])
    assert reader.step == 1.0
    with out.open("a") as stream:
        stream.write("\x1b[A\r")
    reader.read(2.0, [0])
    assert reader.step == 1.0
