"""The stacks of real workers that hang in real ways."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import until

from lllaunch.events import Exited, SpawnerEvent, Started
from lllaunch.linux import proc
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.dump import SIGNUM, WATCHED
from lllaunch.spawner.forker import Forker
from lllaunch.spawner.protocol import Function, Program, Script, Target
from lllaunch.watchdog.findings import TimedOut
from lllaunch.watchdog.stacks import pyspy
from lllaunch.watchdog.stacks.blame import blame
from lllaunch.watchdog.stacks.collector import StackCollector
from lllaunch.watchdog.stacks.frames import RankStack
from lllaunch.watchdog.stacks.kernel import bit, status

pytestmark = pytest.mark.measured

WAIT = 30.0


class Group:
    """Workers of one spawner, and the directory of their stacks."""

    def __init__(self, spawner: Spawner, directory: Path) -> None:
        self.spawner = spawner
        self.directory = directory
        self.pids: dict[int, int] = {}
        self.facts: list[SpawnerEvent] = []

    def start(self, *targets: Target | str, fresh: bool = False) -> None:
        """Start workers and wait until each has made its file ``ready.RANK``."""
        for rank, target in enumerate(targets):
            chosen = self._script(rank, target) if isinstance(target, str) else target
            self.spawner.spawn(
                rank,
                chosen,
                cwd=str(self.directory),
                env={"READY": f"ready.{rank}", WATCHED: "1"},
                fresh=fresh,
            )
        self.wait_until(lambda: len(self.pids) == len(targets))
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

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Take the spawner's facts until something holds."""

        def happened() -> bool:
            wait_readable(self.spawner, 0.05)
            for fact in self.spawner.dispatch():
                self.facts.append(fact)
                if isinstance(fact, Started):
                    self.pids[fact.local_rank] = fact.pid
            return done()

        until(happened, "the spawner", WAIT)

    def wait_for_states(self, states: str) -> None:
        """Wait until the workers are in these states, a letter for each."""

        def there() -> bool:
            found = [proc.facts(pid) for _, pid in sorted(self.pids.items())]
            return states == "".join("?" if each is None else each.state for each in found)

        until(there, f"the workers to be in {states}", WAIT)

    def collect(self, **options: float) -> tuple[RankStack, ...]:
        """Take the stacks of all workers."""
        paths = {rank: str(self.directory / f"stacks{rank}.txt") for rank in self.pids}
        collector = StackCollector(self.pids, paths, "why and when", **options)
        try:
            collector.start()
            assert wait_readable(collector, WAIT)
            assert collector.problem == ""
            return collector.result()
        finally:
            collector.close()

    def text(self, rank: int = 0) -> str:
        return (self.directory / f"stacks{rank}.txt").read_text()

    def ended(self) -> list[Exited]:
        return [fact for fact in self.facts if isinstance(fact, Exited)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Spawner.prestart() as started:
        started.configure(os.environ, os.getcwd())
        yield Group(started, tmp_path)


@pytest.fixture
def no_pyspy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "find", lambda: "")


def functions(stack: RankStack) -> list[str]:
    return [frame.function for frame in stack.frames]


SLEEP = "def stuck():\n    ready(); time.sleep(1000)\nstuck()\n"
# A handler cuts sleep(3) short.
GIL = "def stuck():\n    ready()\n    while True: ctypes.PyDLL(None).sleep(1000)\nstuck()\n"
DEADLOCK = (
    "a, b = threading.Lock(), threading.Lock()\n"
    "met = threading.Barrier(2)\n"
    "def one():\n    with a:\n        met.wait()\n        with b: pass\n"
    "def two():\n    with b:\n        met.wait()\n        ready()\n        with a: pass\n"
    "threading.Thread(target=one, daemon=True).start()\n"
    "two()\n"
)


def test_workers_that_sleep_hold_the_interpreter_or_are_deadlocked(
    group: Group, no_pyspy: None
) -> None:
    group.start(SLEEP, GIL, DEADLOCK)
    group.wait_for_states("SSS")
    stacks = group.collect()
    assert [stack.rank for stack in stacks] == [0, 1, 2]
    assert [stack.source for stack in stacks] == ["faulthandler"] * 3
    assert [stack.state for stack in stacks] == ["S"] * 3
    assert functions(stacks[0])[:2] == ["stuck", "<module>"]
    assert stacks[0].frames[0].file == str(group.directory / "hang0.py")
    assert stacks[0].frames[0].line == 4
    assert stacks[0].frames[0].code == "ready(); time.sleep(1000)"
    assert functions(stacks[1])[:2] == ["stuck", "<module>"]
    assert functions(stacks[2])[:2] == ["two", "<module>"]
    # Both threads of a deadlock, and what each waits for.
    text = group.text(2)
    assert 'hang2.py", line 8 in one' in text
    assert 'hang2.py", line 13 in two' in text
    assert text.count("why and when") == 1
    assert f"process {group.pids[2]} (parent {group.spawner.pid})" in text
    assert "Threads: 2" in text
    assert "futex" in text
    assert blame(stacks, TimedOut(1.0)).hung == (2,)


def test_a_fresh_interpreter_and_a_second_finding(group: Group, no_pyspy: None) -> None:
    target = Function("time", "sleep", pickle.dumps(((1000,), {})))
    group.start(target, fresh=True)
    # The interpreter starts, and then arms itself.
    until(lambda: group.collect()[0].source == "faulthandler", "the worker to be armed", WAIT)
    before = group.text().count("why and when")
    group.collect()
    assert group.text().count("why and when") == before + 1


def test_children_that_a_worker_forked(group: Group, no_pyspy: None) -> None:
    forks = (
        "def child(n):\n"
        "    if n == 2: ready()\n"
        "    time.sleep(1000)\n"
        "for n in range(3):\n"
        "    if os.fork() == 0: child(n)\n"
        "    time.sleep(0.05)\n"
        "os.wait()\n"
    )
    group.start(forks)
    group.wait_for_states("S")
    (stack,) = group.collect()
    assert functions(stack) == ["<module>"]
    text = group.text()
    assert text.count("below it: process") == 3
    assert text.count(" in child\n") == 3
    assert text.count("(faulthandler)") == 4


def test_a_stopped_worker_is_read_from_outside(group: Group) -> None:
    if not pyspy.find():
        pytest.skip("py-spy is not installed")
    group.start(SLEEP, SLEEP)
    os.kill(group.pids[0], signal.SIGSTOP)
    group.wait_for_states("TS")
    stacks = group.collect()
    assert stacks[0].state == "T"
    assert blame(stacks, TimedOut(1.0)).hung == (0,)
    assert "written by itself: none, it is stopped" in group.text(0)
    if "permission denied" in group.text(0):
        pytest.skip("py-spy may not read other processes here")
    assert stacks[0].source == "py-spy"
    assert functions(stacks[0]) == ["stuck", "<module>"] == functions(stacks[1])
    os.kill(group.pids[0], signal.SIGCONT)


def test_programs_tell_what_the_kernel_knows(group: Group) -> None:
    group.start(Program("sleep", ("1000",)))
    until(lambda: proc.command(group.pids[0]) == "sleep 1000", "the program", WAIT)
    group.wait_for_states("S")
    (stack,) = group.collect()
    assert (stack.source, stack.state, stack.frames) == ("kernel", "S", ())
    assert stack.wchan == kernel_function(group.pids[0])
    text = group.text()
    assert f"process {group.pids[0]} (parent {group.spawner.pid}): sleep 1000\n" in text
    assert f"waits in the kernel in: {stack.wchan or '-'}\n" in text
    assert "State: S (sleeping)" in text
    assert "kernel stack:" in text
    assert "Python" not in text
    assert not group.ended()


def kernel_function(pid: int) -> str:
    name = Path(f"/proc/{pid}/wchan").read_text()
    return "" if name == "0" else name


def test_a_script_of_the_shell_stands_where_its_python_stands(group: Group) -> None:
    if not pyspy.find():
        pytest.skip("py-spy is not installed")
    (group.directory / "inner.py").write_text(
        "import time\ndef inner():\n    open('ready', 'w').close()\n    time.sleep(1000)\ninner()\n"
    )
    group.start(Program("sh", ("-c", f"{sys.executable} inner.py; true")))
    until((group.directory / "ready").exists, "the script", WAIT)
    (stack,) = group.collect()
    if "permission denied" in group.text():
        pytest.skip("py-spy may not read other processes here")
    assert stack.source == "py-spy"
    assert functions(stack) == ["inner", "<module>"]
    assert stack.frames[0].file.endswith("inner.py")


UNPREPARED = {
    "default": (
        "ready(); signal.signal(signal.SIGRTMIN + 15, signal.SIG_DFL); ready()",
        "it does not catch the signal",
    ),
    "ignored": (
        "signal.signal(signal.SIGRTMIN + 15, signal.SIG_IGN); ready()",
        "it does not catch the signal",
    ),
    "blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); ready()",
        "it blocks the signal",
    ),
    "closed": ("os.closerange(3, 4096); ready()", "it is not prepared"),
}


def test_workers_that_undid_what_they_were_armed_with_go_on(group: Group, no_pyspy: None) -> None:
    pause = "\nwhile True: signal.pause()\n"
    group.start(*(code + pause for code, _ in UNPREPARED.values()))
    group.wait_for_states("S" * len(UNPREPARED))
    # Until the first one has made its file a second time, it may be on its way to the default.
    until(lambda: not catches(group.pids[0]), "the default disposition", WAIT)
    stacks = group.collect()
    assert [stack.source for stack in stacks] == ["kernel"] * len(UNPREPARED)
    for rank, (_, reason) in enumerate(UNPREPARED.values()):
        assert f"written by itself: none, {reason}" in group.text(rank)
    group.wait_for_states("S" * len(UNPREPARED))
    assert not group.ended()


def catches(pid: int) -> bool:
    found = status(pid)
    return found is not None and bool(found.caught & bit(SIGNUM))


# A parent in vfork sleeps uninterruptibly until its child ends; here the child has its own memory.
VFORK = (
    "number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]\n"
    "child = ctypes.PyDLL(None).syscall(number, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)\n"
    "if child == 0:\n    ready(); time.sleep(1000)\n"
)


def test_a_worker_in_uninterruptible_sleep(group: Group) -> None:
    if os.uname().machine not in {"x86_64", "aarch64"}:
        pytest.skip("the number of clone(2) is not known for this machine")
    group.start(VFORK, SLEEP)
    group.wait_for_states("DS")
    stacks = group.collect()
    assert [stack.state for stack in stacks] == ["D", "S"]
    assert stacks[0].source == "kernel"
    assert blame(stacks, TimedOut(1.0)).hung == (0,)
    # Its name, not its command line.
    assert f"(parent {group.spawner.pid}): (python" in group.text(0)
    assert "none, it sleeps uninterruptibly" in group.text(0)


def test_a_user_of_faulthandler_is_not_disturbed(group: Group, no_pyspy: None) -> None:
    text = (
        "import faulthandler\n"
        "faulthandler.enable(open('user.txt', 'w'))\n"
        "assert open('lowest').fileno() == 4\n" + SLEEP
    )
    (group.directory / "lowest").touch()
    group.start(text)
    group.wait_for_states("S")
    (stack,) = group.collect()
    assert functions(stack)[0] == "stuck"
    assert (group.directory / "user.txt").read_text() == ""
    os.kill(group.pids[0], signal.SIGSEGV)
    group.wait_until(lambda: bool(group.ended()))
    assert group.ended()[0].exitcode == -signal.SIGSEGV
    assert "Segmentation fault" in (group.directory / "user.txt").read_text()


def test_workers_of_start_method_fork(tmp_path: Path, no_pyspy: None) -> None:
    ready = tmp_path / "ready"

    def stuck() -> None:
        ready.touch()
        time.sleep(1000)

    forker = Forker()
    try:
        pid = forker.spawn(0, (stuck, ()), env={WATCHED: "1"})
        until(ready.exists, "the worker", WAIT)
        (stack,) = stacks_of({0: pid}, {})
        assert functions(stack) == ["stuck"]
    finally:
        forker.close()


def stacks_of(pids: dict[int, int], paths: dict[int, str]) -> tuple[RankStack, ...]:
    collector = StackCollector(pids, paths, "why")
    try:
        collector.start()
        assert wait_readable(collector, WAIT)
        return collector.result()
    finally:
        collector.close()


def test_strangers_are_left_alone_and_the_gone_are_left_out(tmp_path: Path) -> None:
    # This process is not below itself, and process 1 is nobody's worker.
    pids = {0: os.getpid(), 1: 1, 2: 2**22 + 1}
    paths = {rank: str(tmp_path / f"{rank}.txt") for rank in pids}
    assert stacks_of(pids, paths) == tuple(RankStack(rank) for rank in pids)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_one_problem(group: Group, no_pyspy: None) -> None:
    group.start(SLEEP, SLEEP)
    collector = StackCollector(group.pids, {0: "/no/such/0.txt", 1: "/no/such/1.txt"}, "why")
    try:
        collector.start()
        assert wait_readable(collector, WAIT)
        assert collector.problem == "/no/such/0.txt: No such file or directory"
        assert [stack.path for stack in collector.result()] == ["", ""]
        assert [functions(stack)[0] for stack in collector.result()] == ["stuck", "stuck"]
    finally:
        collector.close()
        collector.close()


def test_without_time_what_the_kernel_knows_is_written(group: Group) -> None:
    group.start(SLEEP)
    group.wait_for_states("S")
    (stack,) = group.collect(seconds=0.0)
    assert (stack.state, stack.source, stack.frames) == ("S", "kernel", ())
    assert "State: S" in group.text()


def test_giving_up_in_the_middle_leaves_nothing_open(group: Group) -> None:
    # The test's own fixture looks for open descriptors.
    group.start(SLEEP)
    collector = StackCollector(group.pids, {}, "why")
    collector.start()
    collector.close()
    assert [stack.rank for stack in collector.result()] == [0]
