"""Sweeps with real jobs: forked, run side by side, killed, tried again, interrupted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import gone, text_of, until
from support.sweeps import NAMES, ONE, Played, each, machine

import lllaunch.sweep.schedule as v
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.forks import STOP_AND_CONTINUE
from lllaunch.sweep.journal import OverRecord, read_journal
from lllaunch.sweep.leases import LeaseFailed
from lllaunch.sweep.loop import ComposingFailed
from lllaunch.sweep.policy import Retries, Summary, SweepPolicy
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.processes import JobProcess, Work
from lllaunch.sweep.protocol import Answer, Broken, JobAnswered, JobPrinted, Prepared, Tick

pytestmark = pytest.mark.measured

# generous: only a hang takes that long
WAIT = 30.0


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    found = Played(tmp_path)
    yield found
    found.close()


def test_jobs_run_side_by_side_and_slots_are_refilled(played: Played) -> None:
    def execute(job: Prepared, lease: Lease, _: Spawner | None) -> int:
        # Nobody else is between these lines on the same GPU.
        own = played.place / lease.gpus[0]
        own.touch(exist_ok=False)
        played.mark(f"job{job.payload}")
        assert isinstance(job.payload, int)
        # each waits for its neighbour: alone it would fail
        until(lambda: played.marked(f"job{job.payload ^ 1}"), "the other job", WAIT)
        own.unlink()
        return 0 if os.environ["CUDA_VISIBLE_DEVICES"] == lease.gpus[0] else 1

    finish = played.sweep(6, each(), execute)
    assert finish == v.FinishSweep(Summary(succeeded=6), 0)
    assert played.states() == dict.fromkeys(range(6), "succeeded")
    assert played.history().exit_code == 0
    # what a job just released is never seen as somebody else's
    assert not played.of(v.LeaseRefused)
    assert (
        "CUDA_VISIBLE_DEVICES" not in os.environ or os.environ["CUDA_VISIBLE_DEVICES"] != NAMES[0]
    )


def many_ways_to_prepare(number: int) -> Answer:
    if number == 5:
        raise LookupError("no such thing")
    if number == 6:
        raise ConfigError((Diagnostic("type", "launch.x", "3", "is wrong"),))
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    others: dict[int, Answer] = {
        8: Broken(1, ""),
        9: Prepared(Need(9), ("a=9",), "9"),
        10: Broken(2, "broken", ("a=10",), "10"),
    }
    return others[number] if number in others else each()(number)


def many_ways_to_end(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
    if job.payload == 1:
        return 3
    if job.payload == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.payload == 3:
        raise ValueError("out of the job")
    if job.payload == 4:
        sys.exit(5)
    return 0


def test_every_way_to_end(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    finish = played.sweep(11, many_ways_to_prepare, many_ways_to_end)
    assert finish == v.FinishSweep(Summary(succeeded=1, failed=10), 6)
    codes = {0: 0, 1: 3, 2: 137, 3: 1, 4: 5, 5: 1, 6: 2, 7: 137, 8: 1, 9: 2, 10: 2}
    assert {number: code for number, (_, code) in played.ends().items()} == codes
    states = played.states()
    assert (states[0], states[1], states[2]) == ("succeeded", "error", "signalled")
    assert {states[number] for number in (3, 4, 5, 6, 7, 8, 9, 10)} == {"error"}
    why = {job.job: job.result.root_cause for job in played.history().jobs.values() if job.result}
    assert why[5] == "LookupError: no such thing"
    assert why[6] == "launch.x: 3 is wrong [type]"
    assert why[9].startswith("needs 9 GPUs")
    assert why[10] == "broken"
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

    def execute(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
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

    finish = played.sweep(3, each(), execute, captures=True)
    assert finish.exit_code == 0, played.of(JobPrinted)


def test_output_comes_line_by_line(played: Played) -> None:
    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        for part in ("one", " line\n", "another"):
            sys.stdout.write(part)
            sys.stdout.flush()
        os.write(2, b"from C\n" + bytes(100_000) + b"\n")
        return 0

    played.sweep(2, each(), execute, captures=True)
    for number in (0, 1):
        told = [(one.stream, one.line) for one in played.of(JobPrinted) if one.number == number]
        assert [line for stream, line in told if stream == 1] == [b"one line", b"another"]
        assert [line for stream, line in told if stream == 2] == [b"from C", bytes(100_000)]


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_a_job_is_tried_again(played: Played, delay: float) -> None:
    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        with open(played.place / f"tries{job.payload}", "a") as file:
            file.write("x")
        if job.payload == 0 and text_of(played.place / "tries0") != "xxx":
            os.kill(os.getpid(), signal.SIGKILL)
        return 3 if job.payload == 1 else 0

    job = Prepared(Need(1))
    policy = SweepPolicy(retries=Retries(failure=1, signal=2), retry_delay=delay)
    finish = played.sweep(3, each(job), execute, policy)
    assert finish.summary == Summary(succeeded=2, failed=1)
    assert [text_of(played.place / f"tries{n}") for n in range(3)] == ["xxx", "xx", "x"]
    assert [job.tries for job in played.history().jobs.values()] == [3, 2, 1]
    assert [job.retry for job in played.history().jobs.values()] == [2, 1, 0]


def test_the_result_of_a_run_tells_the_cause(played: Played) -> None:
    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        place = played.place / job.directory
        place.mkdir(exist_ok=True)
        limit = {"type": "OverMemory", "text": "used 9 GiB"}
        result = {"state": "failed", "exit_code": 4, "limit": limit, "ended": "9999"}
        (place / "result.json").write_text(json.dumps(result))
        return 4

    job = Prepared(Need(1), directory="dir")
    policy = SweepPolicy(retries=Retries(hang=0, oom=1))
    played.sweep(1, each(job), execute, policy)
    assert [retry.cause for retry in played.of(v.Retry)] == ["oom"]
    result = played.history().jobs[0].result
    assert result is not None
    assert (result.state, result.root_cause) == ("failed", "used 9 GiB")


def test_a_job_that_dies_while_it_waits_is_prepared_again(played: Played) -> None:
    played.machine = machine(1)

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        if job.payload == 0:
            until(lambda: played.marked("killed"), "the other's end", WAIT)
        return 0

    def prepare(number: int) -> Answer:
        if number == 1 and not played.marked("killed"):
            (played.place / "pid").write_text(str(os.getpid()))
        return each()(number)

    def react(what: object) -> None:
        if isinstance(what, v.JobComposed) and what.number == 1:
            pid = int(text_of(played.place / "pid"))
            os.kill(pid, signal.SIGKILL)
            until(lambda: gone(pid), "its end", WAIT)
            (played.place / "pid").unlink()
            played.mark("killed")

    played.react = react
    assert played.sweep(2, prepare, execute).summary == Summary(succeeded=2)


def sleeper(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
    print("ready", flush=True)
    time.sleep(1000)
    return 0


def stubborn(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleeper(_job, _lease, _)


def test_a_signal_ends_all_jobs(played: Played) -> None:
    def react(what: object) -> None:
        if isinstance(what, JobPrinted) and len(played.of(JobPrinted)) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    played.react = react
    finish = played.sweep(9, each(), sleeper, captures=True)
    assert finish.exit_code == 130
    assert finish.summary.cancelled == 2
    assert finish.summary.succeeded + finish.summary.failed == 0
    assert [played.ends()[number] for number in (0, 1)] == [("cancelled", 130)] * 2
    assert not played.of(v.KillJobs)
    states = played.states()
    assert [states.pop(number) for number in (0, 1)] == ["signalled"] * 2
    # composed ahead, and never started
    assert set(states.values()) <= {"skipped"}


def test_a_second_signal_kills(played: Played) -> None:
    def react(what: object) -> None:
        both = isinstance(what, JobPrinted) and len(played.of(JobPrinted)) == 2
        if both or isinstance(what, v.SignalJobs):
            os.kill(os.getpid(), signal.SIGTERM)

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
            os.kill(os.getpid(), signal.SIGTERM)

    played.react = react
    assert played.sweep(9, prepare, sleeper).exit_code == 143


def test_a_job_that_cannot_be_killed_is_given_up(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.machine = machine(1)
    monkeypatch.setattr("lllaunch.sweep.loop.KILL_SECONDS", 0.05)
    send, spared = JobProcess.signal, []

    def spare(job: JobProcess, signum: int) -> None:
        if job.number == 0 and signum == signal.SIGKILL:
            spared.append(job.pid)
        else:
            send(job, signum)

    def react(what: object) -> None:
        if isinstance(what, (JobPrinted, v.SignalJobs)):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(JobProcess, "signal", spare)
    played.react = react
    try:
        finish = played.sweep(1, each(), stubborn, captures=True)
        assert finish.summary.cancelled == 1
        assert played.ends()[0] == ("cancelled", 137)
        # it has its lock still
        assert played.leases.acquire(Lease((NAMES[0],)))
    finally:
        for pid in set(spared):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_job_is_bound_to_its_cores(played: Played) -> None:
    def execute(_job: Prepared, lease: Lease, _: Spawner | None) -> int:
        return 0 if os.sched_getaffinity(0) == set(lease.cpus) else 1

    before = os.sched_getaffinity(0)
    finish = played.sweep(2, each(Prepared(Need(0, 1))), execute, pins=True)
    assert finish.summary == Summary(succeeded=2)
    assert os.sched_getaffinity(0) == before


def test_a_lease_is_kept_until_what_a_job_left_has_ended(played: Played) -> None:
    played.machine = machine(1)

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        if job.payload == 1:
            return 0 if played.marked("end") else 1
        # An executed program: it has no lock of the lease.
        code = f"sleep 0.3; touch '{played.place}/end'"
        subprocess.Popen(["sh", "-c", code], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert played.sweep(2, each(), execute).summary == Summary(succeeded=1, failed=1)


def until_blocked(played: Played) -> Callable[[Prepared, Lease, Spawner | None], int]:
    """What jobs do: the first runs until the sweep can start nothing, all others end at once."""

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        if job.payload == 0:
            until(lambda: played.marked("blocked"), "that nothing can be started", WAIT)
        return 0

    return execute


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr("lllaunch.sweep.loop._PAUSE_SECONDS", 0.01)


class Journals:
    """What can happen to a journal, and what mends it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.path.stat().st_size, self.limits[1]))

    def renamed(self) -> None:
        self.path.rename(self.path.with_name("other"))

    def mend(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
        with contextlib.suppress(FileNotFoundError):
            self.path.with_name("other").rename(self.path)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("what", ["full", "renamed"])
def test_while_the_journal_cannot_be_written_what_runs_goes_on(played: Played, what: str) -> None:
    journal = Journals(Path(played.journal.path))

    def react(event: object) -> None:
        if event == v.JobComposed(1, ONE.need):
            getattr(journal, what)()
        elif isinstance(event, v.Blocked):
            played.mark("blocked")
        elif isinstance(event, v.JobEnded) and event.number == 0:
            journal.mend()

    played.react = react
    try:
        finish = played.sweep(4, each(), until_blocked(played))
    finally:
        journal.mend()
    assert finish == v.FinishSweep(Summary(succeeded=4), 0)
    # the end of the first is in the journal, too
    assert played.states() == dict.fromkeys(range(4), "succeeded")
    (blocked,) = played.of(v.Blocked)
    assert "sweep.jsonl" in blocked.why
    assert len(played.of(v.Unblocked)) == 1
    assert not played.of(v.SignalJobs)


def test_ctrl_c_between_the_fork_and_the_session_of_a_job_is_the_launchers(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    setsid = os.setsid

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # as from the terminal, not from the launcher
        setsid()

    monkeypatch.setattr(os, "setsid", interrupted)
    finish = played.sweep(3, each(), lambda *_: 0)
    assert finish == v.FinishSweep(Summary(succeeded=3), 0)


def test_a_job_whose_process_got_the_signal_while_it_was_composed_was_not_run(
    played: Played,
) -> None:
    launcher = os.getpid()

    def prepare(number: int) -> Answer:
        if number == 1:
            # a signal to all processes of a Slurm step
            os.kill(launcher, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGKILL)
        return ONE._replace(payload=number)

    finish = played.sweep(3, prepare, sleeper)
    assert finish == v.FinishSweep(Summary(cancelled=1, not_run=2), 143, 15)
    # what the launcher has no word of when the signal comes, it does not write down either
    assert played.states() in ({0: "signalled"}, {0: "signalled", 1: "skipped"})


@pytest.mark.usefixtures("soon")
def test_who_is_interrupted_while_the_journal_cannot_be_written_ends(played: Played) -> None:
    journal = Journals(Path(played.journal.path))

    def react(event: object) -> None:
        if event == v.JobComposed(1, ONE.need):
            journal.full()
        elif isinstance(event, v.Blocked):
            os.kill(os.getpid(), signal.SIGINT)

    played.react = react
    try:
        finish = played.sweep(4, each(), sleeper)
    finally:
        journal.mend()
    assert finish == v.FinishSweep(Summary(cancelled=1, not_run=3), 130, 2)


@pytest.mark.usefixtures("soon")
def test_a_journal_that_stays_unwritable_ends_the_sweep_when_nothing_runs(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lllaunch.sweep.loop._PATIENCE_SECONDS", 0.0)
    journal = Journals(Path(played.journal.path))

    def react(event: object) -> None:
        if event == v.JobComposed(1, ONE.need):
            journal.full()
        elif isinstance(event, v.Abandoned):
            played.mark("blocked")

    played.react = react
    try:
        with pytest.raises(OutputError, match=r"sweep\.jsonl"):
            played.sweep(4, each(), until_blocked(played))
    finally:
        journal.mend()
    assert played.ends()[0] == ("succeeded", 0)


def test_a_journal_that_was_removed_ends_no_job_and_starts_none(played: Played) -> None:
    def react(event: object) -> None:
        if event == v.JobComposed(1, ONE.need):
            os.unlink(played.journal.path)
        elif isinstance(event, v.Abandoned):
            played.mark("blocked")

    played.react = react
    with pytest.raises(OutputError) as caught:
        played.sweep(4, each(), until_blocked(played))
    assert caught.value.path == played.journal.path
    assert "was removed" in str(caught.value)
    assert caught.value.exit_code == 1
    assert played.ends()[0] == ("succeeded", 0)
    assert set(played.ends().values()) == {("succeeded", 0), ("not_run", None)}


@pytest.mark.usefixtures("soon")
def test_a_lease_that_cannot_be_taken_is_tried_again(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, refusals = played.leases.acquire, iter((True, True))

    def refuse(lease: Lease) -> object:
        if lease.gpus[0] == NAMES[1] and next(refusals, False):
            raise LeaseFailed("GPU 1", "Too many open files")
        return acquire(lease)

    played.react = lambda event: played.mark("blocked") if isinstance(event, v.Blocked) else None
    monkeypatch.setattr(played.leases, "acquire", refuse)
    finish = played.sweep(5, each(), until_blocked(played))
    assert finish == v.FinishSweep(Summary(succeeded=5), 0)
    assert played.of(v.Blocked)[0].why == "GPU 1 cannot be leased: Too many open files"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("failing", [(1,), (2,), (1, 2, 3), (2, 3, 4)])
def test_a_fork_that_fails_is_tried_again(
    played: Played, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...]
) -> None:
    fork, forks, launcher = os.fork, itertools.count(), os.getpid()

    def sometimes() -> int:
        if os.getpid() == launcher and next(forks) in failing:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    played.react = lambda event: played.mark("blocked") if isinstance(event, v.Blocked) else None
    monkeypatch.setattr(os, "fork", sometimes)
    finish = played.sweep(5, each(), until_blocked(played))
    assert finish == v.FinishSweep(Summary(succeeded=5), 0)
    assert "could not be started: Resource" in played.of(v.Blocked)[0].why
    assert not played.of(v.SignalJobs)


@pytest.mark.usefixtures("soon")
def test_a_fork_that_fails_for_another_attempt_is_tried_again(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, forks, launcher = os.fork, itertools.count(), os.getpid()

    def second_fails() -> int:
        if os.getpid() == launcher and next(forks) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        if not played.marked("tried"):
            played.mark("tried")
            return 3
        return 0

    monkeypatch.setattr(os, "fork", second_fails)
    finish = played.sweep(1, each(), execute, SweepPolicy(retries=Retries(failure=1)))
    assert finish == v.FinishSweep(Summary(succeeded=1), 0)
    assert len(played.of(v.JobNotStarted)) == 1


def test_jobs_that_always_die_while_composed_end_the_sweep_and_no_other_job(
    played: Played,
) -> None:
    def prepare(number: int) -> Answer:
        if number:
            os.kill(os.getpid(), signal.SIGKILL)
        return ONE._replace(payload=number)

    played.react = lambda event: played.mark("blocked") if isinstance(event, v.Abandoned) else None
    with pytest.raises(ComposingFailed):
        played.sweep(9, prepare, until_blocked(played))
    assert played.ends()[0] == ("succeeded", 0)
    assert len(played.ends()) == 4


def test_a_process_that_is_not_of_a_job_is_neither_waited_for_nor_ended(played: Played) -> None:
    # it was started before the sweep, and leaves a daemon while a job runs, which is adopted here
    place = played.place
    daemon = f"setsid sh -c 'echo $$ > {place}/daemon; exec sleep 1000'"
    text = f"until [ -e {place}/go ]; do sleep 0.02; done; {daemon} & exec true"
    before = subprocess.Popen(["sh", "-c", text])

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        played.mark("go")
        until(lambda: text_of(place / "daemon").endswith("\n"), "the daemon", WAIT)
        return 0

    finish = played.sweep(2, each(), execute)
    pid = int(text_of(place / "daemon"))
    try:
        assert finish == v.FinishSweep(Summary(succeeded=2), 0)
        assert not gone(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        before.wait()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_the_last_line_of_a_job_that_is_killed_is_shown_if_it_is_whole(
    played: Played, killed: bool
) -> None:
    def execute(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        os.write(1, b"whole\nhalf a li")
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    played.sweep(1, each(), execute, captures=True)
    lines = [one.line for one in played.of(JobPrinted)]
    assert lines == ([b"whole"] if killed else [b"whole", b"half a li"])


def test_jobs_have_their_numbers(played: Played) -> None:
    finish = played.sweep([4, 2, 9], each(), lambda *_: 0)
    assert finish.summary == Summary(succeeded=3)
    assert [one.number for one in played.of(v.JobComposed)] == [4, 2, 9]
    assert played.of(v.BeginSweep) == [v.BeginSweep(3)]
    assert played.states() == dict.fromkeys((2, 4, 9), "succeeded")


def test_a_sweep_without_jobs_succeeds(played: Played) -> None:
    def prepare(number: int) -> Answer:
        raise AssertionError(number)

    assert played.sweep(0, prepare, sleeper) == v.FinishSweep(Summary(), 0)
    assert played.history().exit_code == 0


def test_a_job_that_was_just_forked_does_not_hold_up_others(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, close = os.getpid(), played.leases.close

    def slow_close() -> None:
        if os.getpid() != launcher:
            time.sleep(0.1)
        close()

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        until(lambda: played.marked("composed"), "two jobs that wait", WAIT)
        return 0

    def react(what: object) -> None:
        if isinstance(what, v.JobComposed) and what.number == 3:
            played.mark("composed")

    # The first of two jobs ends, another is forked while the second still holds its lock, and
    # then that one ends, too.
    played.react = react
    monkeypatch.setattr(played.leases, "close", slow_close)
    assert played.sweep(6, each(), execute).summary == Summary(succeeded=6)
    assert not played.of(v.LeaseRefused)


def test_a_job_process_ends_when_nobody_wants_it() -> None:
    job = JobProcess.fork(0, Work(each(), sleeper, machine()), lambda: None)
    until(lambda: (job.receive(), job.answered)[1], "the answer", WAIT)
    assert isinstance(job.answer, Prepared)
    assert not job.reap()
    job.end()
    assert job.exit_code == 137


def test_a_config_larger_than_the_socket(played: Played) -> None:
    job = Prepared(Need(1), config={"text": "x" * 2_000_000})
    assert played.sweep(3, each(job), lambda *_: 0).exit_code == 0
    config = played.journal.config_of(2)
    assert config is not None
    assert len(config["text"]) == 2_000_000


def test_an_exit_code_that_the_system_does_not_know_is_a_failure(played: Played) -> None:
    assert played.sweep(1, each(), lambda *_: 256).summary == Summary(failed=1)


def test_what_the_journal_ends_with(played: Played) -> None:
    played.sweep(0, each(), sleeper)
    assert [entry.record for entry in read_journal(played.journal.path)][-1] == OverRecord(0)


def test_what_composing_yields_is_told_before_the_fact(played: Played) -> None:
    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def prepare(number: int) -> Answer:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        answers: list[Answer] = [ONE._replace(payload=1), Broken(2, "no", ("a=1",))]
        return answers[number]

    policy = SweepPolicy(retries=Retries(signal=1))
    played.sweep(3, prepare, execute, policy)
    told = played.of(JobAnswered)
    why = "its process ended while it was composed"
    answers = [ONE, Broken(2, "no", ("a=1",)), Broken(137, why)]
    # once, though the first was composed again
    assert told == [JobAnswered(*pair) for pair in enumerate(answers)]
    assert len(played.of(v.Retry)) == 1
    facts = [played.seen[played.seen.index(one) + 1] for one in told]
    kinds = [v.JobComposed, v.JobBroken, v.JobBroken]
    assert [type(fact) for fact in facts] == kinds
    assert [fact.number for fact in facts] == [0, 1, 2]


def test_a_job_is_reviewed_once(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    # who waits for the end of a job that waits for its lease waits in vain
    monkeypatch.setattr("lllaunch.sweep.processes._REAP_SECONDS", 2 * WAIT)
    seen: list[tuple[int, Prepared]] = []

    def review(number: int, job: Prepared) -> Prepared | Broken:
        seen.append((number, job))
        if number == 1:
            return Broken(2, "as job 0", ("a=1",), "same")
        return job._replace(directory=f"reviewed{number}")

    def prepare(number: int) -> Answer:
        print(f"composed {number}", flush=True)
        return ONE._replace(directory="same", payload=number)

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        if job.payload == 2:
            return 3
        (played.place / f"reviewed{job.payload}").mkdir()
        result = {"state": "succeeded", "exit_code": 0, "ended": "9999"}
        (played.place / f"reviewed{job.payload}" / "result.json").write_text(json.dumps(result))
        return 0

    policy = SweepPolicy(retries=Retries(failure=1))
    began = time.monotonic()
    finish = played.sweep(3, prepare, execute, policy, review=review, captures=True)
    assert finish.summary == Summary(succeeded=1, failed=2)
    assert time.monotonic() - began < WAIT
    assert seen == [(number, ONE._replace(directory="same")) for number in range(3)]
    assert JobAnswered(1, Broken(2, "as job 0", ("a=1",), "same")) in played.seen
    assert played.ends()[1] == ("failed", 2)
    assert JobPrinted(1, 1, b"composed 1") in played.seen
    jobs = played.history().jobs
    assert (jobs[0].directory, jobs[1].directory) == ("reviewed0", "same")
    assert jobs[1].result is not None
    assert jobs[1].result.root_cause == "as job 0"


def test_time_passes_for_who_shows_it(played: Played) -> None:
    def react(what: object) -> None:
        if isinstance(what, Tick) and len(played.of(Tick)) == 4:
            played.mark("enough")

    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        until(lambda: played.marked("enough"), "ticks", WAIT)
        return 0

    played.react = react
    assert played.sweep(1, each(), execute, ticks=lambda: 0.01).exit_code == 0
