"""Branches: warm spawners that share what one of them has imported."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import gone, text_of, until
from support.spawned import told

from lllaunch.errors import SpawnerDied
from lllaunch.events import Exited
from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd
from lllaunch.spawner.client import Branch, Spawner
from lllaunch.spawner.protocol import Script

SLOW = "import os\nwith open('imports', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
WORK = (
    "import os, slow_to_import, sys\nprint(sys.argv[1], os.getppid(), os.getsid(0), os.getpid())\n"
)
# Leaves a daemon behind that ignores SIGTERM, then waits.
HOLDER = """
import os, signal, sys, time
name = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{name}.tmp", "w") as file: file.write(f"{os.getpid()} {os.getppid()}")
    os.rename(f"{name}.tmp", name)
    time.sleep(1000)
time.sleep(1000)
"""


def environ() -> dict[str, str]:
    """This process's environment without what pytest changes in the middle of a test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Spawner]:
    """A spawner that has imported a module, which says so in a file."""
    for name, text in (("slow_to_import", SLOW), ("work", WORK), ("holder", HOLDER)):
        (tmp_path / f"{name}.py").write_text(text)
    with Spawner() as spawner:
        spawner.configure(environ(), str(tmp_path), ["slow_to_import"])
        yield spawner


def job(warm: Spawner, work: Callable[[Spawner], int]) -> int:
    """A fork of this process, as a sweep's job is one, with a branch; its process id."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            (fd,) = socket.recv_fds(there, 1, 1)[1]
            assert warm._key is not None
            branch = Branch(socket.socket(fileno=fd), warm._key, warm.mark)
            warm.forget()
            with Spawner.adopt(branch) as spawner:
                os._exit(work(spawner))
        except SpawnerDied:
            os._exit(98)
        finally:
            os._exit(99)
    pidfd = open_pidfd(pid)
    assert pidfd is not None
    with here, there, warm.branch(pidfd).sock as sock:
        socket.send_fds(here, [b"x"], [sock.fileno()])
    warm.flush()
    return pid


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert status(pid) == -signal.SIGKILL


def run(spawner: Spawner, directory: Path, script: str, *argv: str) -> int:
    """Run a script to its end; its exit code."""
    out = str(directory / f"{argv[0]}.log")
    target = Script(str(directory / script), argv)
    spawner.spawn(0, target, cwd=str(directory), env={}, stdout=out, stderr=out)
    return told(spawner, Exited)[0].exitcode


def test_jobs_share_one_import_and_have_spawners_of_their_own(
    warm: Spawner, tmp_path: Path
) -> None:
    def work(name: str) -> Callable[[Spawner], int]:
        return lambda spawner: run(spawner, tmp_path, "work.py", name)

    jobs = [job(warm, work(f"job{number}")) for number in range(4)]
    assert [status(pid) for pid in jobs] == [0, 0, 0, 0]
    assert text_of(tmp_path / "imports").split() == [str(warm.pid)]
    said = [text_of(tmp_path / f"job{number}.log").split() for number in range(4)]
    assert [words[0] for words in said] == ["job0", "job1", "job2", "job3"]
    parents = {int(words[1]) for words in said}
    assert len(parents) == 4
    assert warm.pid not in parents
    assert all(session == pid for _, _, session, pid in said)
    until(lambda: not proc.descendants(warm.pid), "the end of the branches")
    # and the spawner itself still serves
    assert run(warm, tmp_path, "work.py", "own") == 0


def holding(warm: Spawner, tmp_path: Path, name: str) -> tuple[int, int, int, int]:
    """A job that holds a worker and a daemon: the job, the branch, the worker, the daemon."""
    pid = job(warm, lambda spawner: run(spawner, tmp_path, "holder.py", name))
    daemon, worker = map(int, until(lambda: text_of(tmp_path / name), "the daemon").split())
    facts = proc.facts(worker)
    assert facts is not None
    return pid, facts.ppid, worker, daemon


def test_the_end_of_a_job_ends_all_of_its_own_and_nothing_else(
    warm: Spawner, tmp_path: Path
) -> None:
    first = holding(warm, tmp_path, "first")
    second = holding(warm, tmp_path, "second")
    end(first[0])
    until(lambda: all(map(gone, first[1:])), "the end of the first job's processes")
    assert not any(map(gone, second))
    # also while the branch does nothing
    os.kill(second[1], signal.SIGSTOP)
    end(second[0])
    until(lambda: all(map(gone, second[1:])), "the end of the second job's processes")


@pytest.mark.parametrize("whose", ["of a branch", "of the first spawner"])
def test_the_end_of_a_spawner_is_that_of_all_it_had_started(
    warm: Spawner, tmp_path: Path, whose: str
) -> None:
    pid, branch, worker, daemon = holding(warm, tmp_path, "x")
    if whose == "of a branch":
        os.kill(branch, signal.SIGKILL)
    else:
        warm.close()
    # no end of a worker is told any more
    until(lambda: all(map(gone, (branch, worker, daemon))), "the end of the branch")
    end(pid)
    assert gone(warm.pid) == (whose != "of a branch")


def test_a_branch_of_a_dead_spawner_is_an_error(warm: Spawner, tmp_path: Path) -> None:
    assert run(warm, tmp_path, "work.py", "first") == 0
    os.kill(warm.pid, signal.SIGKILL)
    until(lambda: gone(warm.pid), "the end of the spawner")
    assert status(job(warm, lambda spawner: 0)) == 98
