"""A sweep whose launcher is killed, and is gone on with: no finished job is lost or runs again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.launching import gone, until
from typing_extensions import Self

from lllaunch.errors import ConfigError
from lllaunch.linux.process import set_parent_death_signal, wait_readable
from lllaunch.sweep.directory import JOURNAL, LOCK_NAME, SUMMARY
from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    OverRecord,
    Result,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.loop import Sweep
from lllaunch.sweep.machine import find_machine
from lllaunch.sweep.policy import SweepPolicy
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import Prepared
from lllaunch.sweep.resume import NewJob
from lllaunch.sweep.session import JobToCompare, SweepSession

pytestmark = pytest.mark.measured

# generous: only a hang takes that long
WAIT = 60.0
JOBS = 12
KILLS = 20
OVERRIDES = [[f"n={number}"] for number in range(JOBS)]


def begin(path: Path, **more: Any) -> SweepSession:
    return SweepSession.begin(str(path), command=("n=0,1",), version="0", **more)


def forked(play: Callable[[], object]) -> int:
    """Runs a function in a process of its own; its process id."""
    pid = os.fork()
    if not pid:
        try:
            play()
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def be_job(directory: Path, seconds: float) -> NoReturn:
    """A job's process: dies with its launcher, and leaves a result."""
    launcher = os.getppid()
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    directory.mkdir(exist_ok=True)
    if (directory / "result.json").exists():
        (directory / "ran again").touch()
    time.sleep(seconds)  # what it does
    (directory / ".tmp").write_text('{"state": "succeeded", "exit_code": 0, "ended": "9"}')
    (directory / ".tmp").rename(directory / "result.json")
    os._exit(0)


def compose(finished: Sequence[JobToCompare]) -> Generator[NewJob, None, None]:
    for index, number, directory in finished:
        assert directory == str(number)
        yield NewJob(OVERRIDES[index], f"of {index}")


def be_launcher(path: Path, resume: bool) -> NoReturn:
    """A launcher that runs its jobs two at a time, as fast as it can."""
    session = begin(path, resume=resume, patience=WAIT)
    batch = session.plan(OVERRIDES, 0, compose)
    assert list(batch.numbers) == list(range(JOBS))
    running: dict[int, int] = {}

    def end_one() -> None:
        pid, status = os.wait()
        assert status == 0
        session.journal.append(EndedRecord(running.pop(pid), 0, Result("succeeded", 0)))

    # not in order: what fits first runs first
    for number in sorted(batch.numbers, key=lambda number: number * 5 % JOBS):
        if number in batch.skipped:
            continue
        key = f"of {number}"
        session.journal.append(ComposedRecord(number, tuple(OVERRIDES[number]), str(number), key))
        session.journal.append(StartedRecord(number))
        seconds = number % 3 * 0.002
        running[forked(lambda: be_job(path / str(number), seconds))] = number  # noqa: B023
        if len(running) > 1:
            end_one()
    while running:
        end_one()
    session.journal.append(OverRecord(0))
    session.write(session.result())
    session.close()
    os._exit(0)


def test_a_launcher_that_is_killed_again_and_again_finishes_each_job_once(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    chance = random.Random(6)
    finished: set[str] = set()
    kills = resumes = 0
    while kills < KILLS or resumes < 2:
        kills += 1
        assert kills < 10 * KILLS
        # a machine with other work to do comes less far in that time
        longest = 0.05 * 2 ** (kills // KILLS)
        resume = (path / JOURNAL).exists()
        launcher = forked(lambda: be_launcher(path, resume))  # noqa: B023
        try:
            time.sleep(chance.uniform(0.0, longest))
        finally:
            kill(launcher)
        now = {file.parent.name for file in path.glob("*/result.json")}
        assert finished <= now
        finished = now
        if resume:
            # readable at every moment, and knows of all that has finished
            history = SweepHistory(read_journal(str(path / JOURNAL)))
            assert finished <= {str(number) for number in history.jobs}
            resumes = history.resumes
    launcher = forked(lambda: be_launcher(path, (path / JOURNAL).exists()))
    assert os.waitpid(launcher, 0)[1] == 0
    document = json.loads((path / SUMMARY).read_text())
    assert document["counts"] == {"succeeded": JOBS}
    assert document["exit_code"] == 0
    assert [job["job"] for job in document["jobs"]] == list(range(JOBS))
    assert [job["overrides"] for job in document["jobs"]] == OVERRIDES
    assert not list(path.glob("*/ran again"))
    assert document["resumes"] > 1


class Killed:
    """A launcher that was killed, and a job of it that lives until it is told to end.

    Attributes:
        launcher: its process id.
        job: the job's.
    """

    def __init__(self, path: Path) -> None:
        told, tell = os.pipe()
        end, self._end = os.pipe()

        def launch() -> None:
            session = begin(path)
            job = os.fork()
            if not job:
                os.close(self._end)
                os.close(tell)
                os.read(end, 1)
                os._exit(0)
            os.write(tell, str(job).encode())
            del session
            time.sleep(WAIT)

        self.launcher = forked(launch)
        os.close(tell)
        os.close(end)
        try:
            self.job = int(os.read(told, 20))
        finally:
            os.close(told)
            kill(self.launcher)

    def let_job_end(self, *_: object) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_job_end()
        until(lambda: gone(self.job), "the end of the job", WAIT)


def test_a_resume_waits_for_jobs_that_a_killed_launcher_has_left(tmp_path: Path) -> None:
    said: list[str] = []
    with Killed(tmp_path) as killed:

        def say(line: str) -> None:
            assert not gone(killed.job)
            said.append(line)
            killed.let_job_end()

        begin(tmp_path, resume=True, say=say, patience=WAIT).close()
        assert gone(killed.job)
    assert said == [f"waiting for jobs that the killed launcher of {str(tmp_path)!r} has left"]


def test_a_resume_gives_up_on_jobs_that_do_not_end(tmp_path: Path) -> None:
    with Killed(tmp_path) as killed:
        with pytest.raises(ConfigError) as caught:
            begin(tmp_path, resume=True, patience=0.05)
        message = str(caught.value)
        assert message.startswith(
            f"hydra.launcher.resume: {str(tmp_path)!r} is still in use by jobs of a sweep whose "
            f"launcher (pid {killed.launcher} on "
        )
        told = f"has ended; wait for them, or end them (pids {killed.job}) [in-use]"
        assert message.endswith(told)


def test_a_launcher_that_lives_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    told, tell = os.pipe()

    def hold() -> None:
        session = begin(tmp_path)
        os.write(tell, b"x")
        time.sleep(WAIT)
        session.close()

    holder = forked(hold)
    try:
        os.read(told, 1)
        with pytest.raises(ConfigError) as caught:
            begin(tmp_path, resume=True, say=said.append, patience=WAIT)
    finally:
        kill(holder)
        os.close(told)
        os.close(tell)
    assert f"is in use by another sweep (pid {holder} on " in str(caught.value)
    assert not said
    begin(tmp_path, resume=True).close()


def test_ctrl_c_ends_the_waiting_and_leaves_no_process(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with Killed(tmp_path), pytest.raises(KeyboardInterrupt):
            begin(tmp_path, resume=True, say=interrupt, patience=WAIT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    begin(tmp_path, resume=True, patience=WAIT).close()


def be_sweep(path: Path, names: str, resume: bool) -> NoReturn:
    """A launcher that runs one batch of jobs, and if that is not a resume another one."""
    machine = find_machine({"LLLAUNCH_PRETEND_GPUS": names})
    session = begin(path, resume=resume, patience=WAIT)

    def prepare(number: int) -> Prepared:
        # as the journal of another launcher has it
        directory = str(path / directories.get(number, str(number)))
        return Prepared(Need(1), tuple(OVERRIDES[number]), directory, f"of {number}")

    def execute(job: Prepared, lease: Lease, spawner: object) -> int:
        place = Path(job.directory)
        place.mkdir(exist_ok=True)
        opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        ours = sorted(name[len(str(path)) + 1 :] for name in opened if name.startswith(str(path)))
        (place / "open").write_text(" ".join(ours))
        be_job(place, 0.01)

    codes = []
    for first in (0,) if resume else (0, JOBS // 2):
        wanted = OVERRIDES if resume else OVERRIDES[first : first + JOBS // 2]
        numbers, skipped, directories = session.plan(wanted, first, compose)
        leases = Leases(machine)
        sweep = Sweep(
            machine,
            SweepPolicy(),
            leases,
            session.journal,
            prepare,
            execute,
            lambda what: None,
            [number for number in numbers if number not in skipped],
        )
        codes.append(sweep.run().exit_code)
        session.write(session.result())
        leases.close()
    session.close()
    os._exit(0 if codes == [0] * len(codes) else 1)


@pytest.mark.parametrize("moment", [0.05, 0.1, 0.2, WAIT])
def test_a_real_sweep_is_gone_on_with_right_after_its_launcher_was_killed(
    tmp_path: Path, moment: float
) -> None:
    path = tmp_path / "sweep"
    names = ",".join(f"{name}-{os.getpid()}" for name in "xyz")
    launcher = forked(lambda: be_sweep(path, names, resume=False))
    pidfd = os.pidfd_open(launcher)
    try:
        until((path / JOURNAL).exists, "the journal", WAIT)
        wait_readable(pidfd, moment)  # a moment of many, or its end
    finally:
        os.kill(launcher, signal.SIGKILL)
        os.close(pidfd)
    # not waited for: its jobs may be there still, and it as well
    before = {file: file.stat().st_mtime_ns for file in path.glob("*/result.json")}
    again = forked(lambda: be_sweep(path, names, resume=True))
    assert os.waitpid(again, 0)[1] == 0
    os.waitpid(launcher, 0)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    document = json.loads((path / SUMMARY).read_text())
    assert document["counts"] == {"succeeded": JOBS}
    assert [job["job"] for job in document["jobs"]] == list(range(JOBS))
    assert not list(path.glob("*/ran again"))
    for number in range(JOBS):
        # it holds the directory, and could not write into the journal
        assert (path / str(number) / "open").read_text() == LOCK_NAME
