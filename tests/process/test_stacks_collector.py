"""The stacks of real workers that hang in real ways, and what arming does to a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import WAIT, until

from lllaunch.events import Started
from lllaunch.linux import proc
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.evidence import WATCHED
from lllaunch.spawner.protocol import Program, Script, Target
from lllaunch.watchdog import collector
from lllaunch.watchdog.collector import StackCollector, Written
from lllaunch.watchdog.evidence import RankStack


class Group:
    """Workers of one spawner, and the directory of their stacks."""

    def __init__(self, spawner: Spawner, directory: Path) -> None:
        self.spawner = spawner
        self.directory = directory
        self.pids: dict[int, int] = {}

    def start(self, *targets: Target | str) -> None:
        """Start workers and wait until each has made its file ``ready.RANK``."""
        for rank, target in enumerate(targets):
            chosen = self._script(rank, target) if isinstance(target, str) else target
            env = {"READY": f"ready.{rank}", WATCHED: "1"}
            self.spawner.spawn(rank, chosen, cwd=str(self.directory), env=env)
        until(lambda: self._started() == len(targets), "the spawner")
        for rank, target in enumerate(targets):
            if isinstance(target, str):
                until((self.directory / f"ready.{rank}").exists, f"worker {rank}")

    def _script(self, rank: int, text: str) -> Script:
        path = self.directory / f"hang{rank}.py"
        path.write_text(
            "import ctypes, os, signal, sys, threading, time\n"
            "def ready(): open(os.environ['READY'], 'w').close()\n" + text
        )
        return Script(str(path))

    def _started(self) -> int:
        wait_readable(self.spawner, 0.05)
        facts = self.spawner.dispatch()
        self.pids |= {fact.local_rank: fact.pid for fact in facts if isinstance(fact, Started)}
        return len(self.pids)

    def wait_for_states(self, states: str) -> None:
        """Wait until the workers are in these states, a letter for each."""

        def there() -> bool:
            found = [proc.facts(pid) for _, pid in sorted(self.pids.items())]
            return states == "".join("?" if each is None else each.state for each in found)

        until(there, f"the workers to be in {states}")

    def collect(self) -> tuple[RankStack, ...]:
        """Take the stacks of all workers."""
        paths = {rank: str(self.directory / f"stacks{rank}.txt") for rank in self.pids}
        collector = StackCollector(self.pids, Written("why and when", paths))
        try:
            collector.start()
            assert wait_readable(collector, WAIT)
            assert collector.problem == ""
            return collector.result()
        finally:
            collector.close()

    def text(self, rank: int = 0) -> str:
        return (self.directory / f"stacks{rank}.txt").read_text()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Spawner.prestart() as started:
        started.configure(os.environ, os.getcwd())
        yield Group(started, tmp_path)


@pytest.fixture
def no_pyspy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "find_spy", lambda: "")


def functions(stack: RankStack) -> list[str]:
    return [frame.function for frame in stack.frames]


def test_children_that_a_worker_forked(group: Group, no_pyspy: None) -> None:
    group.start("""
def child(n):
    if n == 2: ready()
    time.sleep(1000)
for n in range(3):
    if os.fork() == 0: child(n)
    time.sleep(0.05)
os.wait()
""")
    group.wait_for_states("S")
    (stack,) = group.collect()
    assert functions(stack) == ["<module>"]
    text = group.text()
    assert text.count("below it: process") == 3
    assert text.count(" in child\n") == 3
    assert text.count("(faulthandler)") == 4


def test_programs_tell_what_the_kernel_knows(group: Group) -> None:
    group.start(Program("sleep", ("1000",)))
    until(lambda: proc.command(group.pids[0]) == "sleep 1000", "the program")
    group.wait_for_states("S")
    (stack,) = group.collect()
    assert (stack.source, stack.state, stack.frames) == ("kernel", "S", ())
    text = group.text()
    assert f"process {group.pids[0]} (parent {group.spawner.pid}): sleep 1000\n" in text
    assert f"waits in the kernel in: {stack.wchan or '-'}\n" in text
    assert "State: S (sleeping)" in text
    assert "Python" not in text
    group.wait_for_states("S")


def test_a_script_of_the_shell_stands_where_its_python_stands(group: Group) -> None:
    if not collector.find_spy():
        pytest.skip("py-spy is not installed")
    (group.directory / "inner.py").write_text(
        "import time\ndef inner():\n    open('ready', 'w').close()\n    time.sleep(1000)\ninner()\n"
    )
    group.start(Program("sh", ("-c", f"{sys.executable} inner.py; true")))
    until((group.directory / "ready").exists, "the script")
    (stack,) = group.collect()
    if "permission denied" in group.text():
        pytest.skip("py-spy may not read other processes here")
    assert stack.source == "py-spy"
    assert functions(stack) == ["inner", "<module>"]


UNPREPARED = {
    "signal.signal(signal.SIGRTMIN + 15, signal.SIG_DFL)": "it does not catch the signal",
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())": "it blocks the signal",
    "os.closerange(3, 4096)": "it is not prepared",
}


def test_workers_that_undid_what_they_were_armed_with_go_on(group: Group, no_pyspy: None) -> None:
    pause = "; ready()\nwhile True: signal.pause()\n"
    group.start(*(code + pause for code in UNPREPARED))
    group.wait_for_states("SSS")
    stacks = group.collect()
    assert [stack.source for stack in stacks] == ["kernel"] * 3
    for rank, reason in enumerate(UNPREPARED.values()):
        assert f"written by itself: none, {reason}" in group.text(rank)
    group.wait_for_states("SSS")


# Arming: nothing that the code of a process would notice

START = """
import os, signal, sys
from lllaunch.spawner import evidence as dump
from lllaunch.testing import open_fds
from lllaunch.watchdog.collector import has_signal, status

def files():
    return [fd for fd, link in open_fds().items() if link == dump.MEMFD_LINK]

def catches():
    return has_signal(status(os.getpid()), "SigCgt")

def dumped():
    os.kill(os.getpid(), dump.SIGNUM)
    (fd,) = files()
    return os.pread(fd, 1 << 20, 0).decode()
"""


def run(code: str) -> str:
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pythons_handlers_stay_as_they_were() -> None:
    out = run("""
handlers = [signal.getsignal(n) for n in signal.valid_signals()]
dump.arm()
(fd,) = files()
print(catches(), not os.get_inheritable(fd))
print(handlers == [signal.getsignal(n) for n in signal.valid_signals()])
print('line' in dumped())
""")
    assert out.split() == ["True"] * 4


def test_a_process_that_arms_itself_again_has_a_file_of_its_own() -> None:
    # As in a worker that starts workers by fork: their signals are reset.
    out = run("""
dump.arm()
mine = os.stat(f'/proc/self/fd/{files()[0]}').st_ino
if os.fork() == 0:
    signal.signal(dump.SIGNUM, signal.SIG_DFL)
    dump.arm()
    own = os.stat(f'/proc/self/fd/{files()[0]}').st_ino
    print(len(files()), own != mine, catches(), 'line' in dumped(), flush=True)
    os._exit(0)
os.wait()
print(os.stat(f'/proc/self/fd/{files()[0]}').st_size)
""")
    assert out.split() == ["1", "True", "True", "True", "0"]


def test_a_file_of_the_users_under_the_inherited_number_is_left_alone() -> None:
    out = run("""
dump.arm()
(fd,) = files()
os.dup2(1, fd)
if os.fork() == 0:
    dump.arm()
    os.write(fd, b'still open')
    os._exit(0)
os.wait()
""")
    assert out == "still open"


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_pyspy_that_hangs_fails_or_is_missing(tmp_path: Path) -> None:
    hangs = program(tmp_path / "hangs", "exec sleep 1000")
    # one more than are asked at a time
    pids = [*range(1, (os.cpu_count() or 1) + 2)]
    told = collector.spy(hangs, pids, time.monotonic() + 2.0, lambda: False)
    assert sorted(told) == pids
    assert {text for text, _ in told.values()} == {""}
    assert told[1][1].startswith("it did not end within")
    assert "no time left" in " ".join(why_not for _, why_not in told.values())
    # A second look may succeed.
    fails = program(tmp_path / "fails", f"echo x >> {tmp_path}/tried; echo 'Error: no' >&2; exit 1")
    assert collector.spy(fails, [7], time.monotonic() + WAIT, lambda: False) == {
        7: ("", "Error: no")
    }
    assert (tmp_path / "tried").read_text() == "x\nx\n"
    missing = str(tmp_path / "missing")
    told = collector.spy(missing, [7], time.monotonic() + WAIT, lambda: False)
    assert told[7][0] == ""
    # The system says so, or the program that would have become py-spy.
    assert told[7][1].endswith(f"{missing}: No such file or directory")
    assert collector.spy(hangs, [7], time.monotonic() + WAIT, lambda: True)[7][0] == ""
