"""Sweeps with real jobs: forked, run side by side, killed, tried again, interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import gone, text_of, until

import lllaunch.sweep.vocabulary as v
from lllaunch.errors import ConfigError, OutputError, Problem
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.facts import Exited
from lllaunch.spawner.targets import Script
from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.inside import Work
from lllaunch.sweep.jobs import ForkFailed, JobProcess
from lllaunch.sweep.journal import Journal, read_journal
from lllaunch.sweep.leases import LeaseFailed, Leases
from lllaunch.sweep.loop import ComposingFailed
from lllaunch.sweep.machine import Machine, find_machine
from lllaunch.sweep.output import JobPrinted
from lllaunch.sweep.policy import Retries, Summary, SweepPolicy
from lllaunch.sweep.prepared import Answer, Broken, Done, Prepared
from lllaunch.sweep.records import Header, Over, Record, Started
from lllaunch.sweep.resources import Lease, Need
from lllaunch.sweep.shell import Sweep

# generous: only a hang takes that long
WAIT = 30.0
NAMES = [f"{name}-{os.getpid()}" for name in "abcd"]
ONE = Prepared(Need(1))
NEVER_AGAIN = Retries(hang=0, signal=0)

Execute = Callable[[Prepared, Lease, "Spawner | None"], int]


def machine(gpus: int = 2) -> Machine:
    return find_machine({"LLLAUNCH_PRETEND_GPUS": ",".join(NAMES[:gpus])})


class Played:
    """A sweep in a directory, and all that was observed of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.machine = machine()
        self.leases = Leases(self.machine)
        self.journal = Journal.create(str(place / "sweep.jsonl"), Header("id", "0"))
        self.seen: list[Any] = []
        self.react: Callable[[Any], None] = lambda _: None

    def observe(self, what: object) -> None:
        self.seen.append(what)
        self.react(what)

    def sweep(
        self,
        prepare: Callable[[int], Answer],
        execute: Execute,
        policy: SweepPolicy | None = None,
        warm: Spawner | None = None,
        **options: Any,
    ) -> v.Finish:
        policy = policy or SweepPolicy(retries=NEVER_AGAIN)
        given = (self.machine, policy, self.leases, self.journal, warm, prepare, execute)
        return Sweep(*given, self.observe, **options).run()

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.seen if isinstance(one, kind)]

    def ends(self) -> dict[int, tuple[str, int | None]]:
        return {one.number: (one.state.value, one.exit_code) for one in self.of(v.Settle)}

    def history(self) -> SweepHistory:
        return SweepHistory(read_journal(self.journal.path))

    def states(self) -> dict[int, str]:
        return {number: job.state for number, job in self.history().jobs.items()}

    def mark(self, name: str) -> None:
        (self.place / name).touch()

    def marked(self, name: str) -> bool:
        return (self.place / name).exists()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    found = Played(tmp_path)
    yield found
    assert found.leases.held() == ()
    found.leases.close()
    found.journal.close()


def so_many(count: int, job: Prepared = ONE) -> Callable[[int], Answer]:
    return lambda number: job._replace(payload=number) if number < count else None


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

    finish = played.sweep(so_many(6), execute)
    assert finish == v.Finish(Summary(succeeded=6), 0)
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
        raise ConfigError((Problem("launch.x", "3", "is wrong"),))
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    others: dict[int, Answer] = {
        8: Done(),
        9: Prepared(Need(9), ("a=9",), "9"),
        10: Broken(2, "broken", ("a=10",), "10"),
    }
    return others[number] if number in others else so_many(11)(number)


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
    finish = played.sweep(many_ways_to_prepare, many_ways_to_end)
    assert finish == v.Finish(Summary(succeeded=1, failed=9, skipped=1), 6)
    codes = {0: 0, 1: 3, 2: 137, 3: 1, 4: 5, 5: 1, 6: 2, 7: 1, 9: 2, 10: 2}
    assert {number: code for number, (_, code) in played.ends().items() if number != 8} == codes
    states = played.states()
    assert (states[0], states[1], states[2]) == ("succeeded", "error", "signalled")
    assert {states[number] for number in (3, 4, 5, 6, 7, 9, 10)} == {"error"}
    assert 8 not in states
    why = {job.job: job.result.root_cause for job in played.history().jobs.values() if job.result}
    assert why[5] == "LookupError: no such thing"
    assert why[6] == "launch.x: 3 is wrong"
    assert why[9].startswith("needs 9 GPUs")
    assert why[10] == "broken"
    assert "ValueError: out of the job" in capfd.readouterr().err


def links() -> set[str]:
    """What this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def test_a_job_is_apart_from_its_launcher(played: Played) -> None:
    before = links()

    def execute(_job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        new = sorted(link.partition(":")[0] for link in links() - before)
        facts = {
            "session": os.getsid(0) == os.getpid(),
            "stdin": os.read(0, 1) == b"",
            # its connection, the lock of its one GPU, and its output
            "fds": [kind for kind in new if kind != "/dev/null"] == ["pipe"] * 2 + ["socket"] * 2,
            "journal": not any("sweep.jsonl" in link for link in links()),
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "mask": not signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        }
        print(json.dumps(facts), new)
        return 0 if all(facts.values()) else 1

    finish = played.sweep(so_many(3), execute, captures=True)
    assert finish.exit_code == 0, played.of(JobPrinted)


def test_output_comes_line_by_line(played: Played) -> None:
    def execute(job: Prepared, _lease: Lease, _: Spawner | None) -> int:
        for part in ("one", " line\n", "another"):
            sys.stdout.write(part)
            sys.stdout.flush()
        os.write(2, b"from C\n" + bytes(100_000) + b"\n")
        return 0

    played.sweep(so_many(2), execute, captures=True)
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

    job = Prepared(Need(1), directory="dir")
    policy = SweepPolicy(retries=Retries(failure=1, signal=2), retry_delay=delay)
    finish = played.sweep(so_many(3, job), execute, policy)
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
    played.sweep(so_many(1, job), execute, policy)
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
        return so_many(2)(number)

    def react(what: object) -> None:
        if isinstance(what, v.JobComposed) and what.number == 1:
            pid = int(text_of(played.place / "pid"))
            os.kill(pid, signal.SIGKILL)
            until(lambda: gone(pid), "its end", WAIT)
            (played.place / "pid").unlink()
            played.mark("killed")

    played.react = react
    assert played.sweep(prepare, execute).summary == Summary(succeeded=2)


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
    finish = played.sweep(so_many(9), sleeper, captures=True)
    assert finish.exit_code == 130
    assert finish.summary.cancelled == 2
    assert finish.summary.succeeded + finish.summary.failed == 0
    assert [played.ends()[number] for number in (0, 1)] == [("cancelled", 130)] * 2
    assert not played.of(v.KillJobs)
    assert set(played.states().values()) == {"signalled"}


def test_a_second_signal_kills(played: Played) -> None:
    def react(what: object) -> None:
        both = isinstance(what, JobPrinted) and len(played.of(JobPrinted)) == 2
        if both or isinstance(what, v.SignalJobs):
            os.kill(os.getpid(), signal.SIGTERM)

    played.react = react
    finish = played.sweep(so_many(9), stubborn, captures=True)
    assert finish.exit_code == 143
    assert [played.ends()[number] for number in (0, 1)] == [("cancelled", 137)] * 2


def test_a_signal_while_jobs_are_composed(played: Played) -> None:
    def prepare(number: int) -> Answer:
        time.sleep(1000)
        return None

    def react(what: object) -> None:
        if isinstance(what, v.ComposeNext):
            os.kill(os.getpid(), signal.SIGTERM)

    played.react = react
    assert played.sweep(prepare, sleeper).exit_code == 143


def test_a_job_that_cannot_be_killed_is_given_up(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.machine = machine(1)
    monkeypatch.setattr("lllaunch.sweep.shell.KILL_SECONDS", 0.05)
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
        finish = played.sweep(so_many(1), stubborn, captures=True)
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
    finish = played.sweep(so_many(2, Prepared(Need(0, 1))), execute, pins=True)
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

    assert played.sweep(so_many(2), execute).summary == Summary(succeeded=1, failed=1)


def test_a_full_disk_ends_the_sweep_and_its_jobs(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = played.journal.append

    def full(record: Record) -> None:
        if isinstance(record, Started) and record.job == 1:
            raise OutputError(played.journal.path, "No space left on device")
        append(record)

    monkeypatch.setattr(played.journal, "append", full)
    with pytest.raises(OutputError, match="No space left"):
        played.sweep(so_many(5), sleeper)
    assert played.states() == {0: "signalled", 1: "composed"}


def test_a_lease_that_cannot_be_taken_ends_the_sweep(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = played.leases.acquire

    def refuse(lease: Lease) -> object:
        if lease.gpus[0] == NAMES[1]:
            raise LeaseFailed("GPU 1", "Too many open files")
        return acquire(lease)

    monkeypatch.setattr(played.leases, "acquire", refuse)
    with pytest.raises(LeaseFailed):
        played.sweep(so_many(5), sleeper)


def test_a_fork_that_fails_ends_the_sweep(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forks = os.fork, iter((True, True, False))

    def failing() -> int:
        if next(forks):
            return fork()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", failing)
    with pytest.raises(ForkFailed, match="job 2 could not be started: Resource"):
        played.sweep(so_many(5), sleeper)


def test_jobs_that_always_die_while_composed_end_the_sweep(played: Played) -> None:
    def prepare(number: int) -> Answer:
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    with pytest.raises(ComposingFailed):
        played.sweep(prepare, sleeper)


def test_no_more_jobs_than_were_said(played: Played) -> None:
    finish = played.sweep(so_many(99), lambda *_: 0, first_number=4, total=3)
    assert finish.summary == Summary(succeeded=3)
    assert sorted(played.ends()) == [4, 5, 6]


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Spawner]:
    slow = "import os\nwith open('imports', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
    work = "import os, slow_to_import, sys\nprint(sys.argv[1])\n"
    (tmp_path / "slow_to_import.py").write_text(slow)
    (tmp_path / "work.py").write_text(work)
    environ = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    with Spawner() as spawner:
        spawner.configure(environ, str(tmp_path), ["slow_to_import"])
        yield spawner


def work_of(place: Path, name: str) -> Execute:
    """Runs a script of a directory in a worker of the warm spawner."""

    def execute(job: Prepared, _lease: Lease, spawner: Spawner | None) -> int:
        if spawner is None:
            return 90
        out = str(place / f"{job.payload}.log")
        target = Script(str(place / name), (f"job{job.payload}",))
        spawner.spawn(0, target, cwd=str(place), env={}, stdout=out, stderr=out)
        while wait_readable(spawner, WAIT):
            for fact in spawner.dispatch():
                if isinstance(fact, Exited):
                    return fact.exitcode
        return 91

    return execute


def test_jobs_share_a_warm_spawner(played: Played, warm: Spawner) -> None:
    finish = played.sweep(so_many(4), work_of(played.place, "work.py"), warm=warm)
    assert finish.exit_code == 0, played.ends()
    assert [text_of(played.place / f"{n}.log") for n in range(4)] == [f"job{n}\n" for n in range(4)]
    assert text_of(played.place / "imports").split() == [str(warm.pid)]


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
    assert played.sweep(so_many(6), execute).summary == Summary(succeeded=6)
    assert not played.of(v.LeaseRefused)


def test_a_killed_job_takes_its_workers_along(played: Played, warm: Spawner) -> None:
    played.machine = machine(1)
    script = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
    (played.place / "long.py").write_text(script)

    def react(what: object) -> None:
        if isinstance(what, v.StartJob) and what.number == 0:
            worker = played.place / "0.log"
            # not from here: the launcher has to go on
            code = (
                "import os, sys, time\n"
                "while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read().strip():\n"
                "    time.sleep(0.01)\n"
                "os.kill(int(sys.argv[2]), 15)\n"
            )
            helper.append(subprocess.Popen([sys.executable, "-c", code, worker, str(os.getpid())]))
        if isinstance(what, v.JobEnded) and what.number == 0:
            # the lease was given back when it was gone
            ended_with.append(gone(int(text_of(played.place / "0.log"))))

    helper: list[subprocess.Popen[bytes]] = []
    ended_with: list[bool] = []
    played.react = react
    finish = played.sweep(so_many(3), work_of(played.place, "long.py"), warm=warm)
    assert helper[0].wait(WAIT) == 0
    assert finish.exit_code == 143
    assert ended_with == [True]


def test_without_a_warm_spawner_any_more_jobs_run_all_the_same(
    played: Played, warm: Spawner
) -> None:
    os.kill(warm.pid, signal.SIGKILL)
    until(lambda: gone(warm.pid), "the end of the spawner", WAIT)
    finish = played.sweep(
        so_many(2), lambda _job, _lease, spawner: 0 if spawner is None else 1, warm=warm
    )
    assert finish.exit_code == 0


def test_a_job_process_ends_when_nobody_wants_it() -> None:
    job = JobProcess.fork(0, Work(so_many(1), sleeper, machine()), lambda: None)
    until(lambda: (job.receive(), job.answered)[1], "the answer", WAIT)
    assert isinstance(job.answer, Prepared)
    assert not job.reap()
    job.end()
    assert job.exit_code == 137


def test_a_config_larger_than_the_socket(played: Played) -> None:
    job = Prepared(Need(1), config={"text": "x" * 2_000_000})
    assert played.sweep(so_many(3, job), lambda *_: 0).exit_code == 0
    config = played.journal.config_of(2)
    assert config is not None
    assert len(config["text"]) == 2_000_000


def test_an_exit_code_that_the_system_does_not_know_is_a_failure(played: Played) -> None:
    assert played.sweep(so_many(1), lambda *_: 256).summary == Summary(failed=1)


def test_what_the_journal_ends_with(played: Played) -> None:
    played.sweep(so_many(0), sleeper)
    assert [entry.record for entry in read_journal(played.journal.path)][-1] == Over(0)
