"""Locks between launchers that are real processes: raced for, killed, forked, of other users."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lllaunch.sweep.leases import Leases, Slot, SlotWatch
from lllaunch.sweep.machine import find_machine
from lllaunch.sweep.pool import Lease

pytestmark = pytest.mark.measured

# generous: only a hang takes that long
WAIT = 60.0
NAMES = [f"{name}-{os.getpid()}" for name in "abcd"]
ENVIRON = {"LLLAUNCH_PRETEND_GPUS": ",".join(NAMES)}
A, B, C, D = NAMES

PREAMBLE = """
import os, signal, sys
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.machine import find_machine
from lllaunch.sweep.pool import Lease
leases = Leases(find_machine(os.environ))
names = os.environ["LLLAUNCH_PRETEND_GPUS"].split(",")
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


class Program:
    """A launcher that runs a few lines of Python; ended with the test."""

    def __init__(self, code: str, *arguments: str) -> None:
        # The packages' .pth files, which site runs, import more than all of this.
        path = f"import sys; sys.path[:] = {sys.path!r}\n"
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", path + PREAMBLE + code, *arguments],
            env={**os.environ, **ENVIRON},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def line(self) -> str:
        return self.stdout.readline().strip()

    def tell(self) -> None:
        self.stdin.write("\n")
        self.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.kill()
        program.stdin.close()
        program.stdout.close()


@pytest.fixture
def leases() -> Iterator[Leases]:
    mine = Leases(find_machine(ENVIRON))
    yield mine
    mine.close()


def wait(watch: SlotWatch) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(WAIT * 1000))


def held(leases: Leases, name: str) -> bool:
    """Whether another process holds a GPU."""
    lease = Lease((name,))
    busy = leases.acquire(lease)
    leases.release(Lease(()) if busy else lease)
    return bool(busy)


RACE = """
import random, select
place, rounds = sys.argv[1], int(sys.argv[2])
chance = random.Random(os.getpid())
refused = 0
say("ready")
sys.stdin.readline()
while rounds:
    wanted = Lease(tuple(chance.sample(names, chance.randint(1, 4))))
    busy = leases.acquire(wanted)
    if busy:
        refused += 1
        watch = leases.watch(busy[0])
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        if not poll.poll(60_000):
            sys.exit("waited in vain")
        watch.close()
        continue
    # A file that must be new: nobody else is between these lines with the same GPU.
    for name in wanted.gpus:
        os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_EXCL))
    os.sched_yield()
    for name in wanted.gpus:
        os.unlink(f"{place}/{name}")
    leases.release(wanted)
    rounds -= 1
say(refused)
"""


def test_launchers_race_for_four_gpus(programs: list[Program], tmp_path: Path) -> None:
    programs += [Program(RACE, str(tmp_path), "300") for _ in range(3)]
    assert [program.line() for program in programs] == ["ready"] * 3
    for program in programs:
        program.tell()
    refused = [int(program.line() or -1) for program in programs]
    assert [program.process.wait(WAIT) for program in programs] == [0, 0, 0]
    # they did get into each other's way
    assert sum(refused) > 0
    assert not os.listdir(tmp_path)


HOLD = """
say(*leases.acquire(Lease(tuple(names[:2]))))
for _ in sys.stdin:
    leases.release(Lease((names[0],)))
    say("released")
"""


def test_a_killed_holder_holds_nothing(programs: list[Program], leases: Leases) -> None:
    holder = Program(HOLD)
    programs.append(holder)
    assert holder.line() == ""
    assert leases.acquire(Lease((D, C, B, A))) == (Slot("gpu", A),)
    watches = [leases.watch(Slot("gpu", name)) for name in (A, B)]
    holder.kill()
    assert all(map(wait, watches))
    assert leases.acquire(Lease((A, B, C, D))) == ()


def test_a_release_wakes_and_leaves_the_rest(programs: list[Program], leases: Leases) -> None:
    holder = Program(HOLD)
    programs.append(holder)
    assert holder.line() == ""
    watch = leases.watch(Slot("gpu", A))
    holder.tell()
    assert wait(watch)
    assert holder.line() == "released"
    assert leases.acquire(Lease((A,))) == ()
    assert held(leases, B)


JOBS = """
jobs = []
for name in names[:2]:
    lease = Lease((name,))
    assert not leases.acquire(lease)
assert not leases.acquire(Lease((names[2],)))  # a job that is not started yet
for name in names[:2]:
    pid = os.fork()
    if not pid:
        kept = [os.dup(fd) for fd in leases.descriptors(Lease((name,)))]
        leases.close()
        say("job", name)
        signal.pause()
    jobs.append(pid)
say(*jobs)
for _ in sys.stdin:
    leases.release(Lease((names[0],)))
    say("released")
"""


@contextlib.contextmanager
def jobs_of(launcher: Program) -> Iterator[tuple[int, int]]:
    """The jobs on A and B of a launcher that runs JOBS, by pidfd: they outlive it."""
    lines = sorted(launcher.line() for _ in range(3))
    assert lines[1:] == [f"job {A}", f"job {B}"]
    one, other = map(os.pidfd_open, map(int, lines[0].split()))
    try:
        yield one, other
    finally:
        for pidfd in (one, other):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def test_a_job_keeps_its_gpu_when_the_launcher_is_killed(
    programs: list[Program], leases: Leases
) -> None:
    launcher = Program(JOBS)
    programs.append(launcher)
    with jobs_of(launcher) as (one, other):
        a, b, c = (leases.watch(Slot("gpu", name)) for name in (A, B, C))
        launcher.kill()
        # No job had it, so nobody has it now: neither job kept what is not its own.
        assert wait(c)
        assert leases.acquire(Lease((C,))) == ()
        assert held(leases, A)
        assert held(leases, B)
        signal.pidfd_send_signal(one, signal.SIGKILL)
        assert wait(a)
        assert leases.acquire(Lease((A,))) == ()
        assert held(leases, B)
        signal.pidfd_send_signal(other, signal.SIGKILL)
        assert wait(b)
        assert leases.acquire(Lease((B,))) == ()


def test_a_release_waits_for_the_job(programs: list[Program], leases: Leases) -> None:
    launcher = Program(JOBS)
    programs.append(launcher)
    with jobs_of(launcher) as (one, _):
        watch = leases.watch(Slot("gpu", A))
        launcher.tell()
        assert launcher.line() == "released"
        assert held(leases, A)
        signal.pidfd_send_signal(one, signal.SIGKILL)
        assert wait(watch)
        assert leases.acquire(Lease((A,))) == ()


PROGRAM_OF_A_JOB = """
import subprocess
assert not leases.acquire(Lease((names[0],)))
child = subprocess.Popen(["sleep", "1000"], close_fds=False)
say(child.pid)
signal.pause()
"""


def test_what_is_executed_holds_nothing(programs: list[Program], leases: Leases) -> None:
    launcher = Program(PROGRAM_OF_A_JOB)
    programs.append(launcher)
    pidfd = os.pidfd_open(int(launcher.line()))
    try:
        watch = leases.watch(Slot("gpu", A))
        launcher.kill()
        assert wait(watch)
        assert leases.acquire(Lease((A,))) == ()
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_other_users_hold_too(programs: list[Program], leases: Leases) -> None:
    nobody = 65534
    holder = Program(f"os.setuid({nobody})\n" + HOLD)
    programs.append(holder)
    assert holder.line() == ""
    assert leases.acquire(Lease((A,))) == (Slot("gpu", A),)
    watch = leases.watch(Slot("gpu", A))
    holder.kill()
    assert wait(watch)
    # and the other way round: what root holds, a user waits for
    assert leases.acquire(Lease((A,))) == ()
    waiting = Program(
        # imported before: the other user may not be able to read the library
        f"import select\nos.setuid({nobody})\n"
        "(slot,) = leases.acquire(Lease((names[0],)))\n"
        "watch = leases.watch(slot)\n"
        "say('waits')\n"
        "select.select([watch], [], [], 60)\n"
        "say(len(leases.acquire(Lease((names[0],)))))\n"
    )
    programs.append(waiting)
    assert waiting.line() == "waits"
    leases.release(Lease((A,)))
    assert waiting.line() == "0"
