"""What a worker says of its progress through shared memory, and what its launcher reads."""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch import heartbeats
from lllaunch.heartbeats import (
    HEARTBEAT,
    ProgressRecord,
    heartbeat,
    make_places,
    place_of,
    progress,
    read_heartbeats,
    read_progress,
)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileIO]:
    """Shared with this process as if it was rank 1 of three."""
    path = str(tmp_path / "heartbeats")
    made = make_places(path, 3)
    monkeypatch.setenv(HEARTBEAT, place_of(path, 1))
    heartbeats._places.clear()
    yield made
    heartbeats._places.clear()
    made.close()


def read(memory: FileIO) -> ProgressRecord:
    """What this process has said."""
    record = read_progress(memory, 1)
    assert record is not None
    return record


def test_what_is_said_is_read_by_the_rank_that_said_it(memory: FileIO) -> None:
    assert [read_progress(memory, rank) for rank in range(3)] == [None, None, None]
    assert read_heartbeats(memory, 3) == [0, 0, 0]
    progress(1200, 5000, loss=0.25, lr=3e-4)
    assert read(memory)[1:4] == (1200.0, 5000.0, {"loss": 0.25, "lr": 3e-4})
    assert [read_progress(memory, rank) for rank in (0, 2)] == [None, None]


def test_it_is_a_heartbeat_and_a_heartbeat_leaves_it_alone(memory: FileIO) -> None:
    progress(1)
    record = read(memory)
    assert read_heartbeats(memory, 3) == [0, record.moment, 0]
    heartbeat()
    assert read_heartbeats(memory, 3)[1] > record.moment
    assert read_progress(memory, 1) == record


def test_the_last_word_counts_with_the_metrics_that_it_names(memory: FileIO) -> None:
    progress(1, 10, loss=1, accuracy=0.5)
    progress(step=2, total=None, loss=math.nan)
    record = read(memory)
    assert record[1:3] == (2.0, None)
    assert repr(record.metrics) == repr({"loss": math.nan})


class Tensor:
    """Of one element."""

    def __float__(self) -> float:
        return 0.5


class Several:
    """What torch's tensors of several elements do."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 3 elements cannot be converted to Scalar")


def test_numbers_of_all_kinds_are_taken_and_what_is_none_is_left_out(memory: FileIO) -> None:
    progress(Tensor(), loss=Tensor(), name="resnet", none=None, some=Several(), good=True)  # type: ignore[arg-type]
    assert read(memory)[1:4] == (0.5, None, {"loss": 0.5, "good": 1.0})


@pytest.mark.parametrize("watched", [True, False])
def test_a_step_that_is_no_number_is_an_error_wherever_it_runs(
    memory: FileIO, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    if not watched:
        monkeypatch.delenv(HEARTBEAT)
    for bad in ("7", None, [1], Several()):
        with pytest.raises(TypeError, match="progress: step: expected a number"):
            progress(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="progress: total: expected a number, got 'many'"):
        progress(1, "many")  # type: ignore[arg-type]
    assert read_progress(memory, 1) is None
    # whole numbers beyond all floats end no training
    progress(-(10**400), 10**500, loss=0.5, huge=10**400)
    record = read_progress(memory, 1)
    most = sys.float_info.max
    assert (record and record[1:4]) == ((-most, most, {"loss": 0.5}) if watched else None)


@pytest.mark.parametrize("step", [math.inf, -math.inf, math.nan])
def test_a_step_that_is_no_finite_number_says_nothing(memory: FileIO, step: float) -> None:
    progress(step, 10)
    assert read_progress(memory, 1) is None


def test_without_a_launcher_nothing_happens(
    memory: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HEARTBEAT)
    progress(1, 2, loss=3)
    monkeypatch.setenv(HEARTBEAT, "0:/nowhere/heartbeats")
    heartbeats._places.clear()
    progress(1, 2, loss=3)
    assert read_heartbeats(memory, 3) == [0, 0, 0]


def test_what_has_no_room_is_left_out_and_spills_nowhere(memory: FileIO) -> None:
    metrics = {f"metric_number_{number}": float(number) for number in range(200)}
    progress(3, **metrics)
    record = read(memory)
    assert 30 < len(record.metrics) < 60
    assert list(record.metrics.items()) == list(metrics.items())[: len(record.metrics)]
    assert not any(os.pread(memory.fileno(), 1024, 2 * 1024))


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
numbers = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(step=finite, total=st.none() | finite, metrics=st.dictionaries(names, numbers, max_size=8))
def test_whatever_is_said_comes_back(
    step: float, total: float | None, metrics: dict[str, float]
) -> None:
    metrics = {name: each for name, each in metrics.items() if name not in ("step", "total")}
    plain = {name.replace("\0", " "): number for name, number in metrics.items()}
    place = heartbeats._Place()
    with FileIO(os.memfd_create("heartbeats"), "r+") as made:
        os.truncate(made.fileno(), 1024)
        place.memory = mmap.mmap(made.fileno(), 0)
        heartbeats._places[:] = [place]
        progress(step, total, **metrics)
        heartbeats._places.clear()
        record = read_progress(made, 0)
    assert record is not None
    wrong = step if any(map(math.isnan, plain.values())) else None
    assert record[1:] == (step, total, plain, wrong)


@given(st.binary(min_size=1016, max_size=1016))
def test_no_bytes_make_the_reader_fail(data: bytes) -> None:
    heartbeats._parsed(data)


def test_threads_that_write_at_the_same_time_are_read_whole(memory: FileIO) -> None:
    """The two metrics of a record are the same; names and lengths differ between threads."""
    stop = threading.Event()

    def write(name: str) -> None:
        step = 0
        while not stop.is_set():
            step += 1
            progress(step, **{name: step, f"{name}_again": step})

    writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "long_name")]
    for writer in writers:
        writer.start()
    try:
        seen = 0
        while seen < 2000:
            record = read_progress(memory, 1)
            if record is not None:
                seen += 1
                assert set(record.metrics.values()) == {record.step}
    finally:
        stop.set()
        for writer in writers:
            writer.join()
