"""Sweeps with real jobs: forked, run side by side, killed, tried again, interrupted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from support.launching import WAIT, until
from support.sweeps import NAMES, ONE, Execute, Played, each, machine

import lllaunch.sweep.schedule as v
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.forks import STOP_AND_CONTINUE
from lllaunch.sweep.journal import read_configs
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.processes import JobProcess
from lllaunch.sweep.protocol import Answer, JobPrinted, Prepared
from lllaunch.sweep.schedule import Retries, SweepPolicy


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    found = Played(tmp_path)
    yield found
    found.close()


def jobs(do: Callable[[int], int | None]) -> Execute:
    """Jobs that do something by their numbers, and end with a code; 0 if they tell none."""

    def execute(job: Prepared, _lease: Lease, _spawner: Spawner | None) -> int:
        assert isinstance(job.payload, int)
        return do(job.payload) or 0

    return execute


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


SUCCEEDED = v.FinishSweep(0)


def test_jobs_run_side_by_side_and_slots_are_refilled(played: Played) -> None:
    def execute(job: Prepared, lease: Lease, _: Spawner | None) -> int:
        # Nobody else is between these lines on the same GPU.
        own = played.place / lease.gpus[0]
        own.touch(exist_ok=False)
        played.mark(f"job{job.payload}")
        assert isinstance(job.payload, int)
        # each waits for its neighbour: alone it would fail
        until(lambda: played.marked(f"job{job.payload ^ 1}"), "the other job")
        own.unlink()
        return 0 if os.environ["CUDA_VISIBLE_DEVICES"] == lease.gpus[0] else 1

    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    # as a resumed sweep has them
    numbers = [4, 5, 2, 3, 9, 8]
    assert played.sweep(numbers, each(), execute) == SUCCEEDED
    assert played.states() == dict.fromkeys(sorted(numbers), "succeeded")
    assert played.history().known.exit_code == 0
    # what a job just released is never seen as somebody else's
    assert not played.of(v.JobNotStarted)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
    assert [one.number for one in played.of(Prepared)] == numbers
    assert len(played.of(v.BeginSweep)) == 1


def many_ways_to_prepare(number: int) -> Answer:
    if number == 5:
        raise LookupError("no such thing")
    if number == 6:
        raise ConfigError((Diagnostic("type", "launch.x", "3", "is wrong"),))
    if number == 7:
        die()
    others: dict[int, Answer] = {
        8: Prepared(8, Need(9), ("a=8",), "8"),
        9: v.JobBroken(9, 2, "broken", ("a=9",), "9"),
    }
    return others[number] if number in others else each()(number)


def many_ways_to_end(number: int) -> int:
    if number == 2:
        die()
    if number == 3:
        raise ValueError("out of the job")
    if number == 4:
        sys.exit(5)
    return 3 if number == 1 else 0


@pytest.mark.smoke
def test_every_way_to_end(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    finish = played.sweep(10, many_ways_to_prepare, jobs(many_ways_to_end))
    assert finish == v.FinishSweep(6)
    codes = {0: 0, 1: 3, 2: 137, 3: 1, 4: 5, 5: 1, 6: 2, 7: 137, 8: 2, 9: 2}
    assert {number: code for number, (_, code) in played.ends().items()} == codes
    states = played.states()
    assert (states[0], states[1], states[2]) == ("succeeded", "error", "signalled")
    assert {states[number] for number in range(3, 10)} == {"error"}
    why = {job.job: job.result.root_cause for job in played.history().jobs.values() if job.result}
    assert why[5] == "LookupError: no such thing"
    assert why[6] == "launch.x: 3 is wrong [type]"
    assert why[7] == "its process ended while it was composed"
    assert why[8].startswith("needs 9 GPUs")
    assert why[9] == "broken"
    assert "ValueError: out of the job" in capfd.readouterr().err


def links() -> Counter[str]:
    """What this process has open."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


def test_a_job_is_apart_from_its_launcher(played: Played) -> None:
    before = links()

    def look(_: int) -> int:
        # What has both ends here is nobody else's: libuv makes such a pipe in each child of a
        # process in which another test has had a store of torch's.
        new = sorted(
            link.partition(":")[0]
            for link, count in (links() - before).items()
            if count == 1 and link != "/dev/null"
        )
        facts = {
            "session": os.getsid(0) == os.getpid(),
            "stdin": os.read(0, 1) == b"",
            # its connection, the lock of its one GPU, and its output
            "fds": new == ["pipe"] * 2 + ["socket"] * 2,
            "journal": not any("sweep.jsonl" in link for link in links()),
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()) == STOP_AND_CONTINUE,
        }
        print(json.dumps(facts), new)
        return 0 if all(facts.values()) else 1

    finish = played.sweep(3, each(), jobs(look), captures=True)
    assert finish.exit_code == 0, played.of(JobPrinted)


# Signals


def sleeper(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
    print("ready", flush=True)
    time.sleep(1000)
    return 0


def stubborn(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleeper(_job, _lease, _)


@pytest.mark.smoke
def test_a_second_signal_kills(played: Played) -> None:
    def react(what: object) -> None:
        both = isinstance(what, JobPrinted) and len(played.of(JobPrinted)) == 2
        if both or isinstance(what, v.SignalJobs):
            signal.raise_signal(signal.SIGTERM)

    played.react = react
    finish = played.sweep(9, each(), stubborn, captures=True)
    assert finish.exit_code == 143
    assert [played.ends()[number] for number in (0, 1)] == [("cancelled", 137)] * 2


def test_a_signal_while_jobs_are_composed(played: Played) -> None:
    def prepare(number: int) -> Answer:
        time.sleep(1000)
        return ONE

    def react(what: object) -> None:
        if isinstance(what, v.ComposeNext):
            signal.raise_signal(signal.SIGTERM)

    played.react = react
    assert played.sweep(9, prepare, sleeper).exit_code == 143


def test_a_job_that_cannot_be_killed_is_given_up(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.machine = machine(1)
    monkeypatch.setattr("lllaunch.sweep.local.KILL_SECONDS", 0.05)
    send, spared = JobProcess.signal, []

    def spare(job: JobProcess, signum: int) -> None:
        if job.number == 0 and signum == signal.SIGKILL:
            spared.append(job.pid)
        else:
            send(job, signum)

    def react(what: object) -> None:
        if isinstance(what, (JobPrinted, v.SignalJobs)):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(JobProcess, "signal", spare)
    played.react = react
    try:
        finish = played.sweep(1, each(), stubborn, captures=True)
        assert finish.signum is not None
        assert played.ends()[0] == ("cancelled", 137)
        # it has its lock still
        assert played.leases.acquire(Lease((NAMES[0],)))
    finally:
        for pid in set(spared):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# What is left of a job


def test_a_lease_is_kept_until_what_a_job_left_has_ended(played: Played) -> None:
    played.machine = machine(1)

    def run(number: int) -> int:
        if number == 1:
            return 0 if played.marked("end") else 1
        # An executed program: it has no lock of the lease.
        code = f"sleep 0.3; touch '{played.place}/end'"
        subprocess.Popen(["sh", "-c", code], start_new_session=True)
        die()
        return 0

    played.sweep(2, each(), jobs(run))
    assert played.counts() == {"succeeded": 1, "failed": 1}


# When what all jobs need fails


def until_blocked(played: Played) -> Execute:
    """What jobs do: the first runs until the sweep can start nothing, all others end at once."""

    def run(number: int) -> None:
        if number == 0:
            until(lambda: played.marked("blocked"), "that nothing can be started")

    return jobs(run)


def mark(played: Played, kind: type[v.SweepEvent]) -> Callable[[object], None]:
    return lambda event: played.mark("blocked") if isinstance(event, kind) else None


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr("lllaunch.sweep.loop._PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
def test_while_the_journal_cannot_be_written_what_runs_goes_on(played: Played) -> None:
    journal, other = Path(played.journal.path), played.place / "other"

    def react(event: object) -> None:
        if isinstance(event, v.JobComposed) and event.number == 1:
            journal.rename(other)
        elif isinstance(event, v.Blocked):
            played.mark("blocked")
        elif isinstance(event, v.JobEnded) and event.number == 0:
            other.rename(journal)

    played.react = react
    assert played.sweep(4, each(), until_blocked(played)) == SUCCEEDED
    # the end of the first is in the journal, too
    assert played.states() == dict.fromkeys(range(4), "succeeded")
    (blocked,) = played.of(v.Blocked)
    assert "sweep.jsonl" in blocked.why
    assert len(played.of(v.Unblocked)) == 1


def test_a_journal_that_is_gone_for_good_ends_the_sweep_when_nothing_runs(
    played: Played, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lllaunch.sweep.loop._PATIENCE_SECONDS", 0.0)

    def react(event: object) -> None:
        if isinstance(event, v.JobComposed) and event.number == 1:
            os.remove(played.journal.path)
        elif isinstance(event, v.Abandoned):
            played.mark("blocked")

    played.react = react
    with pytest.raises(OutputError, match=r"sweep\.jsonl.* was removed, renamed or replaced"):
        played.sweep(4, each(), until_blocked(played))
    assert played.ends()[0] == ("succeeded", 0)
    assert set(played.ends().values()) == {("succeeded", 0), ("not_run", None)}


@pytest.mark.usefixtures("soon")
def test_a_fork_that_fails_is_tried_again(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forks, launcher = os.fork, itertools.count(), os.getpid()

    def sometimes() -> int:
        if os.getpid() == launcher and next(forks) in (2, 3, 4):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", sometimes)
    played.react = mark(played, v.Blocked)
    assert played.sweep(5, each(), until_blocked(played)) == SUCCEEDED
    assert "could not be started: no process" in played.of(v.Blocked)[0].why
    assert not played.of(v.SignalJobs)


# What the launcher is told, and tells


def test_a_config_larger_than_the_socket(played: Played) -> None:
    job = Prepared(0, Need(1), config={"text": "x" * 2_000_000})
    assert played.sweep(3, each(job), lambda *_: 0).exit_code == 0
    config = read_configs(played.journal.path, {2})[2]
    assert config is not None
    assert len(config["text"]) == 2_000_000


def test_a_job_is_reviewed_once(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    # who waits for the end of a job that waits for its lease waits in vain
    monkeypatch.setattr("lllaunch.sweep.processes._REAP_SECONDS", 10 * WAIT)
    seen: list[tuple[int, Prepared]] = []

    def review(job: Answer) -> Answer:
        assert isinstance(job, Prepared)
        number = job.number
        seen.append((number, job))
        if number == 1:
            return v.JobBroken(job.number, 2, "as job 0", ("a=1",), "same")
        return structs.replace(job, directory=f"reviewed{number}")

    def prepare(number: int) -> Answer:
        print(f"composed {number}", flush=True)
        return structs.replace(ONE, number=number, directory="same", payload=number)

    def run(number: int) -> int:
        place = played.place / f"reviewed{number}"
        place.mkdir(exist_ok=True)
        result = {"state": "failed" if number else "succeeded", "exit_code": 3 if number else 0}
        (place / "result.json").write_text(
            json.dumps(result | {"ended": "9999-01-01T00:00:00Z", "attempts": []})
        )
        return 3 if number else 0

    policy = SweepPolicy(retries=Retries(failure=1))
    finish = played.sweep(3, prepare, jobs(run), policy, review=review, captures=True)
    assert finish.exit_code == 6
    assert played.counts() == {"succeeded": 1, "failed": 2}
    assert seen == [
        (number, structs.replace(ONE, number=number, directory="same")) for number in range(3)
    ]
    answers = [fact for fact in played.seen if isinstance(fact, (v.JobComposed, v.JobBroken))]
    assert [type(fact) for fact in answers] == [Prepared, v.JobBroken, Prepared]
    assert played.ends()[1] == ("failed", 2)
    assert JobPrinted(1, 1, b"composed 1") in played.seen
    history = played.history().jobs
    assert (history[0].directory, history[1].directory) == ("reviewed0", "same")
    assert history[1].result is not None
    assert history[1].result.root_cause == "as job 0"
