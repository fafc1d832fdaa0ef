"""Makes directories of a large run and of a large sweep, as lllaunch leaves them.

No worker runs: what is written goes through lllaunch's own writers, with numbers that are the same
each time. The run's first attempt lost a worker; in its second all but one of the ranks waited for
that one. Of the sweep's jobs some failed, each for one of three reasons.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from lllaunch.documents import isoformat
from lllaunch.linux.cgroup import Memory
from lllaunch.run import result as causes
from lllaunch.run.execute import host_facts
from lllaunch.run.repository import build_facts
from lllaunch.run.result import (
    AnyWorker,
    AttemptResult,
    Ended,
    Explanation,
    Failed,
    Hang,
    Reached,
    ReturnValue,
    RootCause,
    RunResult,
    Succeeded,
    WorkerResult,
    encode_result,
)
from lllaunch.sweep.history import SweepHistory, summary_of, write_summary
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    JournalEntry,
    OverRecord,
    Record,
    Result,
    StartedRecord,
    encode,
)
from lllaunch.sweep.pool import Lease
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.findings import Stalled
from lllaunch.watchdog.frames import whole_text

SECOND = 10**9
START = 1_760_000_000 * SECOND
HUNG = 77
"""The rank that the others wait for."""
KILLED = 17
"""The rank that a signal ended in the first attempt."""

_PLAN = """\
launch:
  entrypoint: train.py
  args: [--lr, '0.1']
  nproc: {ranks}
  max_restarts: 1
  watchdog: {{stall: 10m}}
"""


def write_run(directory: Path, ranks: int = 256) -> None:
    """Make the directory of a run of two attempts.

    Args:
        directory: where; it is made.
        ranks: number of workers of each attempt, more than `HUNG`.
    """
    directory.mkdir(parents=True)
    (directory / "plan.yaml").write_text(_PLAN.format(ranks=ranks), encoding="utf-8")
    outcome = _outcome(directory, ranks)
    for attempt in outcome.attempts:
        for worker in attempt.workers:
            _write_logs(worker)
    second = Path(outcome.attempts[-1].path)
    hang = outcome.root_cause.hang if outcome.root_cause else None
    assert hang is not None
    (second / "stacks.txt").write_text(whole_text(hang.stacks.values()), encoding="utf-8")
    _write_lines(directory / "events.jsonl", _events(outcome))
    _write_lines(directory / "samples.jsonl", _samples(outcome))
    _write_result(outcome)


def _outcome(directory: Path, ranks: int) -> RunResult:
    first, second = START, START + 605 * SECOND
    died = RootCause(
        *(0, KILLED, KILLED, causes.KilledBySignal(9), first + 600 * SECOND),
        Explanation("outside", "likely", "Another process did."),
        "",
        f"{_place(directory, 0, KILLED)}/stderr.log",
    )
    found = second + 2400 * SECOND
    stacks = tuple(_stack(directory, rank) for rank in range(ranks))
    others = tuple(rank for rank in range(ranks) if rank != HUNG)
    finding = Stalled(tuple(range(ranks)), 600.0, "group")
    since = found - 600 * SECOND
    hang = Hang(finding, found, since, hung=(HUNG,), waiting=others, standing=stacks)
    stderr = f"{_place(directory, 1, HUNG)}/stderr.log"
    hangs = RootCause(*(1, HUNG, HUNG, finding, found, None, "", stderr), hang)
    return RunResult(
        *("failed", 4, str(directory), "generated", first, found + 12 * SECOND),
        plan_hash="3f0c9a3f7a52",
        attempts=(
            _attempt(directory, 0, ranks, first, first + 601 * SECOND, died),
            _attempt(directory, 1, ranks, second, found + 12 * SECOND, hangs),
        ),
        root_cause=hangs,
    )


def _attempt(
    directory: Path, number: int, ranks: int, start: int, end: int, root: RootCause
) -> AttemptResult:
    chance = random.Random(number)
    workers = tuple(
        replace(
            _fate(rank, root),
            local_rank=rank,
            rank=rank,
            **_files(directory, number, rank),
            pid=4000 + rank,
            exitcode=-9 if rank == root.rank else -15,
            started_ns=start + 2 * SECOND + rank * 10**7,
            ended_ns=root.time_ns if number == 0 and rank == root.rank else end - rank * 10**6,
            max_rss=chance.randrange(2 << 30, 6 << 30),
            cpu_seconds=round(chance.uniform(1000, 3000), 2),
            progress=Reached(
                1800.0 - (rank == HUNG), 5000.0, root.time_ns - 600 * SECOND, {"loss": 0.25}
            ),
        )
        for rank in range(ranks)
    )
    path = str(directory / f"attempt_{number}")
    return AttemptResult(number, number, path, "failed", start, end, workers, root)


def _fate(rank: int, root: RootCause) -> AnyWorker:
    if rank == root.rank:
        return Failed(cause=root.cause, explanation=root.explanation)
    return Ended(exitcode=-15, sent=("SIGTERM",), waited_for=() if root.hang is None else (HUNG,))


def _place(directory: Path, attempt: int, rank: int) -> str:
    return str(directory / f"attempt_{attempt}" / str(rank))


def _files(directory: Path, attempt: int, rank: int) -> dict[str, str]:
    place = _place(directory, attempt, rank)
    return {"stdout": f"{place}/stdout.log", "stderr": f"{place}/stderr.log"}


def _stack(directory: Path, rank: int) -> RankStack:
    inner = (
        Frame("/data/project/reader.py", 88, "fetch", "block = connection.recv(size)")
        if rank == HUNG
        else Frame("/data/project/train.py", 140 + rank % 3, "step", "dist.all_reduce(gradient)")
    )
    outer = [
        Frame("/data/project/train.py", line, name, f"{name}()")
        for line, name in ((210, "epoch"), (260, "main"), (300, "<module>"))
    ]
    path = f"{directory}/attempt_1/{rank}/stacks.txt"
    return RankStack(rank, path, (inner, *outer), "S", "futex_wait", "faulthandler")


def _write_logs(worker: WorkerResult) -> None:
    os.makedirs(os.path.dirname(worker.stdout))
    lines = (f"step {step}: loss {1 / (1 + step / 100):.4f} <b>&amp;\n" for step in range(1800))
    Path(worker.stdout).write_text("".join(lines), encoding="utf-8")
    warning = f"rank {worker.rank}: UserWarning: the loader has 2 workers, of 8 cores\n"
    Path(worker.stderr).write_text(warning * 20, encoding="utf-8")


def _events(outcome: RunResult) -> Iterator[dict[str, object]]:
    def event(time_ns: int, what: str, **fields: object) -> dict[str, object]:
        return {"time": isoformat(time_ns), "time_ns": time_ns, "type": what, **fields}

    for attempt in outcome.attempts:
        number, root = attempt.number, attempt.root_cause
        assert root is not None
        begun = attempt.started_ns
        ranks = [worker.local_rank for worker in attempt.workers]
        yield event(begun, "StartWorkers", attempt=number, restart_count=number, restart=None)
        yield event(begun + 10**7, "GroupStarted", ranks=ranks, base_rank=0, preflight=False)
        yield event(begun + 2 * SECOND, "Ready", seconds=2.0, fork_safe=True)
        for each in sorted(attempt.workers, key=lambda worker: worker.started_ns or 0):
            yield event(
                *(each.started_ns or 0, "Started"),
                local_rank=each.local_rank,
                pid=each.pid,
                attempt=number,
            )
        if root.hang is not None:
            finding = to_builtins(root.hang.finding)
            yield event(root.time_ns, "WatchdogFired", finding=finding, kind="hang", ends=True)
            yield event(root.time_ns + 10**6, "TakeStacks", ranks=ranks)
            yield event(root.time_ns + SECOND, "StacksTaken", stacks=[], blame={"hung": [HUNG]})
        signalled = False
        for each in sorted(attempt.workers, key=lambda worker: worker.ended_ns or 0):
            if not signalled and each.exitcode == -15:
                signalled = True
                yield event(root.time_ns + SECOND, "SignalWorkers", signum=15, reason="died")
            yield event(
                *(each.ended_ns or 0, "Exited"),
                local_rank=each.local_rank,
                pid=each.pid,
                exitcode=each.exitcode,
                max_rss=each.max_rss,
                cpu_seconds=each.cpu_seconds,
                attempt=number,
            )
    yield event(outcome.ended_ns, "Finish", state="FAILED")


_MOST_BYTES = 1 << 20


def _samples(outcome: RunResult) -> Iterator[dict[str, object]]:
    """As many as the file may hold: the more ranks there are, the further apart."""
    chance = random.Random(2)
    ranks = len(outcome.attempts[0].workers)
    count = max(8, _MOST_BYTES // (ranks * 170) // 2)
    for attempt in outcome.attempts:
        begun, ended = attempt.started_ns / SECOND, attempt.ended_ns / SECOND
        for number in range(count):
            done = (number + 1) / (count + 1)
            yield {
                "time": round(begun + done * (ended - begun), 3),
                "attempt": attempt.number,
                "ranks": {
                    str(rank): {
                        "cpu": round(chance.uniform(0.5, 1.2), 3),
                        "rss": chance.randrange(2 << 30, 6 << 30),
                        "read": chance.randrange(10**8),
                        "written": chance.randrange(10**5),
                        "output": int(done * 10**5),
                        "gpus": [str(rank % 8)],
                        "step": int(done * 1800),
                        "total": 5000,
                        "metrics": {"loss": round(math.exp(-3 * done) + chance.random() / 9, 4)},
                    }
                    for rank in range(ranks)
                },
                "gpus": {
                    str(gpu): {"use": round(chance.uniform(0.7, 1), 2), "memory": 7 << 33}
                    for gpu in range(8)
                },
            }


def _write_lines(path: Path, records: Iterator[dict[str, object]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def _write_result(outcome: RunResult) -> None:
    host, build = _facts()
    text = encode_result(replace(outcome, host=host, build=build))
    (Path(outcome.directory) / "result.json").write_bytes(text)


@functools.cache
def _facts() -> tuple[dict[str, Any], dict[str, Any]]:
    return host_facts(Memory(total=1 << 40, limit=None)), build_facts("/")


# A sweep


def write_sweep(directory: Path, jobs: int = 1000, gpus: int = 8) -> None:
    """Make the directory of a sweep over three parameters.

    Args:
        directory: where; it is made.
        jobs: how many there are.
        gpus: how many the jobs share; each holds one or two.
    """
    directory.mkdir(parents=True)
    entries = list(_journal(jobs, gpus))
    with open(directory / "sweep.jsonl", "wb") as file:
        file.writelines(encode(entry.record, entry.time_ns) for entry in entries)
    summary = summary_of(SweepHistory(entries), entries[-1].time_ns)
    write_summary(str(directory / "sweep.json"), summary)
    for job in summary.jobs:
        if job.started_ns and job.ended_ns and job.result:
            _write_job(directory / str(job.job), job.started_ns, job.ended_ns, job.result)


_FAILURES = (
    Result("failed", 3, "rank 0: OutOfMemoryError: no memory is left on the device"),
    Result("failed", 3, "rank 1: ValueError: the loss is NaN"),
    Result("failed", 4, "rank 0 hung in all_reduce (train.py:140)"),
)


def _overrides(job: int) -> tuple[str, ...]:
    decay = (0, 1e-4, 1e-3)[job // 100 % 3]
    return (f"params.lr={1e-4 * 1.5 ** (job % 20):.4g}", f"params.decay={decay}", f"seed={job}")


def _journal(jobs: int, gpus: int) -> Iterator[JournalEntry]:
    """The journal's records, in order of time."""
    chance = random.Random(3)
    found: list[tuple[int, Record]] = []
    free = [START + SECOND] * gpus
    for job in range(jobs):
        need = 2 if job % 5 == 0 and gpus > 1 else 1
        gpu = min(range(gpus - need + 1), key=lambda first: max(free[first : first + need]))
        began = max(free[gpu : gpu + need])
        seconds = round(chance.uniform(20, 90), 3)
        lease = Lease(tuple(str(gpu + more) for more in range(need)))
        ended = began + int(seconds * SECOND)
        free[gpu : gpu + need] = [ended + SECOND // 5] * need
        result = _result(job, seconds, chance)
        config = {"params": {"lr": 0.1}, "seed": job}
        found += [
            (began - 1, ComposedRecord(job, _overrides(job), str(job), f"{job:064x}", config)),
            (began, StartedRecord(job, 0, lease, 5000 + job)),
            (ended, EndedRecord(job, 0, result)),
        ]
    command = ("+exp=resnet", "params.lr=...", "params.decay=0,1e-4,1e-3", "seed=...")
    yield JournalEntry(START, Header("generated", "0.1.0", command))
    for time_ns, record in sorted(found, key=lambda one: one[0]):
        yield JournalEntry(time_ns, record)
    yield JournalEntry(max(free), OverRecord(6))


def _result(job: int, seconds: float, chance: random.Random) -> Result:
    if job % 17 == 3:
        return replace(_FAILURES[job % len(_FAILURES)], seconds=seconds)
    value = round(0.9 - (math.log10(1.5 ** (job % 20)) - 1.5) ** 2 / 9 + chance.random() / 50, 6)
    return Result("succeeded", 0, "", seconds, json.dumps(value))


def _write_job(directory: Path, started_ns: int, ended_ns: int, result: Result) -> None:
    directory.mkdir()
    (directory / "plan.yaml").write_text(_PLAN.format(ranks=1), encoding="utf-8")
    files = _files(directory, 0, 0)
    fate: AnyWorker = Succeeded()
    root = None
    values: dict[int, ReturnValue] = {}
    if result.succeeded:
        path = f"{_place(directory, 0, 0)}/return.json"
        text = result.return_value or "null"
        values[0] = ReturnValue(path, len(text), "json", text)
    else:
        cause = causes.Raised(result.root_cause.partition(": ")[2] or result.root_cause, 1)
        root = RootCause(0, 0, 0, cause, ended_ns, None, "", files["stderr"])
        fate = Failed(cause=cause)
    worker = replace(
        fate,
        **files,
        pid=7,
        exitcode=0 if root is None else 1,
        started_ns=started_ns,
        ended_ns=ended_ns,
        max_rss=1 << 30,
        cpu_seconds=9.5,
    )
    state: Sequence[str] = "succeeded" if root is None else "failed"
    outcome = RunResult(
        *(result.state, result.exit_code, str(directory), "id", started_ns, ended_ns),
        attempts=(
            AttemptResult(
                *(0, 0, f"{directory}/attempt_0", state, started_ns, ended_ns), (worker,), root
            ),
        ),
        root_cause=root,
        return_values=values,
    )
    _write_result(outcome)
