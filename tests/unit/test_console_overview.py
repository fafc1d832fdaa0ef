"""How far a run is, what it used, what each rank does: as text; nothing runs."""

from __future__ import annotations

from support.timelines import START, sample

from lllaunch.console.overview import (
    log_rows,
    peak_rows,
    progress_of_ranks,
)
from lllaunch.console.table import Row
from lllaunch.documents import Fields
from lllaunch.results.peaks import Peak, mean_use, peaks_of
from lllaunch.results.timeline import NodeRecords, RunTimeline, timeline_of
from lllaunch.run.outcome import AttemptOutcome, Excerpt, RunOutcome, Succeeded, WorkerOutcome
from lllaunch.watchdog.progress import Progress


def lines(rows: list[Row]) -> list[str]:
    return ["".join(part.text for part in row).rstrip() for row in rows]


def measured(*samples: Fields) -> RunTimeline:
    return timeline_of([NodeRecords("", [], samples)], None)


def test_the_slowest_ranks_are_named_beside_the_furthest() -> None:
    assert progress_of_ranks({}) == ""
    fast, slow = Progress(12, 12, metrics={"loss": 0.3}), Progress(9, 12)
    assert progress_of_ranks({0: fast, 1: fast}) == "step 12 of 12 (100 %), loss 0.3"
    assert progress_of_ranks({0: Progress(599, 600)}) == "step 599 of 600 (99 %)"
    known = {0: fast, 1: slow, 2: slow, 3: Progress(10, 12)}
    assert progress_of_ranks(known) == (
        "step 12 of 12 (100 %), loss 0.3; ranks 1-2 are at step 9 of 12 (75 %)"
    )


def worker(rank: int, max_rss: int) -> WorkerOutcome:
    return WorkerOutcome(rank, rank, Succeeded(), max_rss=max_rss)


def outcome(*workers: WorkerOutcome) -> RunOutcome:
    attempt = AttemptOutcome(3, 0, "/run/attempt_3", "succeeded", START, START, workers)
    return RunOutcome("succeeded", 0, "/run", "run", START, START, (attempt,))


def test_the_most_of_everything_is_found_with_whose_it_was() -> None:
    run = measured(
        sample(1, {"0": {"cpu": 0.5, "rss": 10}, "1": {"cpu": 2, "rss": 5}}),
        sample(2, {"0": {"cpu": 1, "rss": 11}, "1": {"cpu": 0, "rss": 5}}),
        sample(3, {"0": {"metrics": {"cpu": 99}}}, gpus={"0": {"use": 0.5}, "1": {"use": 1.0}}),
    )
    assert peaks_of(run) == (
        Peak("rss", 11, "0", 0, START + 2 * 10**9, 16),
        Peak("cpu", 2, "1", 0, START + 10**9, 2.5),
        Peak("gpu_use", 1.0, "1", 0, START + 3 * 10**9, None),
    )
    assert mean_use(run.series) == 0.75
    # the kernel saw what no sample did
    first, *_ = peaks_of(run, outcome(worker(0, 7), worker(1, 99)))
    assert first == Peak("rss", 99, "1", 3, None, 16)
    first, *_ = peaks_of(run, outcome(worker(0, 7)))
    assert first.value == 11
    assert peaks_of(measured()) == ()
    assert mean_use(()) is None


def test_peaks_have_units_and_say_whose_they_are() -> None:
    peaks = [
        Peak("rss", 3 << 30, "7", 1, None, 5 << 30),
        Peak("cpu", 1.0, "0", 0),
        Peak("gpu_use", 0.98, "3", 1),
    ]
    assert lines(peak_rows(peaks, 0.5, attempts=2)) == [
        "  memory   3.0 GiB  rank 7 in attempt 1  5.0 GiB of all ranks together",
        "  CPU      1 core   rank 0 in attempt 0",
        "  GPU use  98 %     GPU 3 in attempt 1   50 % on average",
    ]
    assert lines(peak_rows(peaks[1:2], None, attempts=1)) == ["  CPU  1 core  rank 0"]
    assert peak_rows([], None, attempts=1) == []


def test_the_ends_of_logs_say_whether_there_is_more() -> None:
    logs = [
        Excerpt("/run/attempt_0/0/stdout.log", ("a", "", "b"), cut=True),
        Excerpt("/run/attempt_0/0/stderr.log", ()),
        Excerpt("/elsewhere/x", ("c",)),
    ]
    assert lines(log_rows(logs, "/run")) == [
        "  The last 3 lines of attempt_0/0/stdout.log:",
        "  | a",
        "  |",
        "  | b",
        "  All of /elsewhere/x:",
        "  | c",
    ]
