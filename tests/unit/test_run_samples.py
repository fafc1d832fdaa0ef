"""samples.jsonl: what is written, what is kept of it, and how the newest is read."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from lllaunch.linux.gpus import GpuUse
from lllaunch.results.store import sample_of
from lllaunch.run.directory import GpuSample, SampleLog, encode_sample, thinned
from lllaunch.watchdog.progress import Progress
from lllaunch.watchdog.sampling import Sample, WorkerSample

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/schemas/samples.schema.json").read_text()
)
NAN = float("nan")
AT = 1_700_000_000_123_456_789


def sample(cpu: float = 0.12345, output: int | None = 7) -> Sample:
    workers = {1: WorkerSample(cpu, 1 << 30, 10.4, 0.0, output), 0: WorkerSample(1, 2, 3, 4, 5)}
    return Sample(workers)


def on_gpus() -> Sample:
    progress = Progress(1200.0, 50000.0, 3.14159, 15533.4, 2.6, {"loss": 2.5, "lr": NAN})
    return Sample(
        {0: WorkerSample(1, 2, 3, 4, 5, ("0", "MIG-a"))},
        {"0": GpuUse(0.97, 70 << 30, 512.25), "MIG-a": GpuUse(memory=5)},
        {0: progress},
    )


def test_gpus_and_progress_stand_beside_what_a_worker_uses() -> None:
    line = encode_sample(on_gpus(), AT, 2, int)
    assert line.endswith(b"}\n")
    record = json.loads(line)
    assert (record["time"], record["attempt"]) == (1_700_000_000.123, 2)
    assert record["ranks"]["0"] == {
        "cpu": 1,
        "rss": 2,
        "read": 3,
        "written": 4,
        "output": 5,
        "gpus": ["0", "MIG-a"],
        "step": 1200,
        "total": 50000,
        "rate": 3.142,
        "eta": 15533,
        "idle": 3,
        "metrics": {"loss": 2.5, "lr": "nan"},
    }
    assert record["gpus"] == {
        "0": {"use": 0.97, "memory": 70 << 30, "power": 512.25},
        "MIG-a": {"memory": 5},
    }


def test_what_is_not_known_is_left_out() -> None:
    known = sample(output=None)._replace(progress={1: Progress(0.5)})
    ranks = json.loads(encode_sample(known, AT, 0, lambda local_rank: local_rank + 8))["ranks"]
    assert ranks["9"] == {"cpu": 0.123, "rss": 1 << 30, "read": 10, "written": 0} | {
        "step": 0.5,
        "idle": 0,
    }
    assert "step" not in ranks["8"]


def test_the_example_in_the_docs_is_what_is_written() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
    (example,) = (line for line in page.read_text().splitlines() if line.startswith('{"time":1'))
    workers = {
        0: WorkerSample(1.0123, 1389363200, 52428800.0, 1203.7, 48210, ("0",)),
        1: WorkerSample(0.997, 1389248512, 52430112.2, 611.0, 0, ("1",)),
    }
    gpus = {"0": GpuUse(0.98, 75161927680, 612.4), "1": GpuUse(0.97, 75161927680, 608.9)}
    line = encode_sample(Sample(workers, gpus), 1714565400_512_000_000, 0, int)
    assert line.decode() == f"{example}\n"
    Draft202012Validator(SCHEMA).validate(json.loads(example))


def test_the_published_schema_has_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    record = json.loads(encode_sample(on_gpus(), AT, 2, int))
    Draft202012Validator(SCHEMA).validate(record)
    assert record.keys() == SCHEMA["properties"].keys()
    assert record["ranks"]["0"].keys() == SCHEMA["$defs"]["RankSample"]["properties"].keys()
    assert record["gpus"]["0"].keys() == SCHEMA["$defs"]["GpuSample"]["properties"].keys()


# Thinning out


def played(count: int, limit: int, interval: float = 5.0, size: int = 100) -> list[float]:
    """Times of what is kept of a run of so many samples, as `SampleLog` would keep them."""
    times: list[float] = []
    for number in range(count):
        # a little early or late, as it is
        times.append(number * interval + (number * 7919 % 11 - 5) / 50 * interval)
        if len(times) * size > limit:
            times = [times[place] for place in thinned(times, [size] * len(times), limit)]
    return times


@pytest.mark.parametrize("hours", [1, 5, 24, 24 * 7])
def test_a_long_run_has_an_even_picture_and_its_last_lines_whole(hours: int) -> None:
    count = hours * 720
    limit = 100_000
    times = played(count, limit)
    assert times[-1] == pytest.approx(5.0 * count, abs=10)
    assert times[0] <= 5.5
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps[-500:]) <= 7.0
    # no hole is much larger than if three tenths of the lines were spread over all of the run
    assert max(gaps) <= max(7.0, 2.2 * times[-1] / 300)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 5000)), min_size=1, max_size=200),
    st.integers(1, 50_000),
)
def test_whatever_the_lines_the_bound_and_their_order_hold(
    lines: list[tuple[float, int]], limit: int
) -> None:
    times, sizes = [time for time, _ in lines], [size for _, size in lines]
    kept = thinned(times, sizes, limit)
    assert kept == sorted(set(kept))
    assert kept[-1] == len(lines) - 1
    assert len(kept) == 1 or sum(sizes[place] for place in kept) <= 0.8 * limit
    # the newer half stays as it is
    newer = [place for place in range(len(lines)) if sum(sizes[place:]) <= limit / 2]
    assert set(newer) <= set(kept)


# The file


def numbered(path: Path) -> list[int]:
    return [json.loads(line)["ranks"]["0"]["output"] for line in path.read_text().splitlines()]


def write(log: SampleLog, number: int) -> None:
    log.write(Sample({0: WorkerSample(0.0, 0, 0.0, 0.0, number)}), 0, int)


def test_the_file_stays_below_its_bound_and_its_last_line_is_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    log = SampleLog(str(path), pytest.fail, limit=4000)
    for number in range(500):
        write(log, number)
        assert path.stat().st_size <= 4000
        newest = sample_of(str(tmp_path))
        assert newest is not None
        assert newest.ranks["0"].output == number
    log.close()
    numbers = numbered(path)
    assert numbers == sorted(numbers)
    assert len(numbers) >= 20
    assert os.listdir(tmp_path) == ["samples.jsonl"]


def test_a_later_run_in_the_same_directory_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(encode_sample(sample(), AT, 3, int) + b'{"time": 17')
    newest = sample_of(str(tmp_path))
    assert newest is not None
    assert newest.attempt == 3
    for number in (1, 2):
        log = SampleLog(str(path), pytest.fail)
        write(log, number)
        log.close()
        log.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert lines[1] == b'{"time": 17'
    assert [json.loads(line)["attempt"] for line in lines[2:]] == [0, 0]


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", '{"time": 1', "[1]\n", "x\n", "{}\n"),
        '{"time": 1, "attempt": 0, "ranks": {"0": 3}}\n',
        '{"time": 1, "attempt": 0, "ranks": []}\n',
        '{"time": 1, "attempt": null, "ranks": {}}\n',
        '{"time": "1", "attempt": 0, "ranks": {}}\n',
        '{"time": 1, "attempt": 0, "ranks": {}, "gpus": []}\n',
    ],
)
def test_without_a_whole_sample_there_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "samples.jsonl").write_text(text)
    assert sample_of(str(tmp_path)) is None


def test_of_several_nodes_the_newest_of_each_are_one(tmp_path: Path) -> None:
    use = {"0": GpuUse(0.5, 1 << 30, 300.0)}
    for name, attempt, first, gpus in (
        ("node_0", 2, 0, use),
        ("node_1", 2, 2, use),
        # it left before
        ("node_2", 1, 4, {}),
    ):
        (tmp_path / name).mkdir()
        workers = {0: WorkerSample(1, 2, 3, 4, 5, tuple(gpus)), 1: WorkerSample(1, 2, 3, 4, 5)}
        line = encode_sample(
            Sample(workers, gpus), AT + first * 10**9, attempt, lambda r, f=first: f + r
        )
        (tmp_path / name / "samples.jsonl").write_bytes(line)
    (tmp_path / "node_3").mkdir()
    newest = sample_of(str(tmp_path))
    assert newest is not None
    assert (newest.time, newest.attempt) == (1_700_000_002.123, 2)
    assert set(newest.ranks) == {"0", "1", "2", "3"}
    gpus = [worker.gpus for worker in newest.ranks.values()]
    assert gpus == [("node_0/0",), (), ("node_1/0",), ()]
    assert set(newest.gpus) == {"node_0/0", "node_1/0"}
    assert newest.gpus["node_1/0"] == GpuSample(0.5, 1 << 30, 300.0)
