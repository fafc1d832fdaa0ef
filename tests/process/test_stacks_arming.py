"""What arming does to a process: nothing that its code would notice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lllaunch.watchdog.stacks import pyspy

pytestmark = pytest.mark.measured

START = """
import os, signal, sys
from lllaunch.spawner import dump
from lllaunch.testing import open_fds
from lllaunch.watchdog.stacks.kernel import bit, status

def files():
    return [fd for fd, link in open_fds().items() if link == dump.MEMFD_LINK]

def catches():
    return bool(status(os.getpid()).caught & bit(dump.SIGNUM))

def dumped():
    os.kill(os.getpid(), dump.SIGNUM)
    (fd,) = files()
    return os.pread(fd, 1 << 20, 0).decode()
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_lowest_descriptors_and_pythons_handlers_stay_as_they_were() -> None:
    out = run(
        "before = os.dup(0); os.close(before)\n"
        "handlers = [signal.getsignal(n) for n in signal.valid_signals()]\n"
        "dump.arm()\n"
        "after = os.dup(0); os.close(after)\n"
        "(fd,) = files()\n"
        "print(before == after, catches(), fd > 900)\n"
        "print(handlers == [signal.getsignal(n) for n in signal.valid_signals()])\n"
        "print(not os.get_inheritable(fd))\n"
        "print('line' in dumped())\n"
    )
    assert out.split() == ["True"] * 6


def test_under_a_low_limit_of_open_files_it_takes_a_number_near_that() -> None:
    out = run(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "dump.arm()\n"
        "print(files(), 'line' in dumped(), 'line' in dumped())\n"
    )
    assert out.split() == ["[48]", "True", "True"]


def test_a_program_that_an_armed_process_executes_is_not_armed() -> None:
    out = run(
        "dump.arm()\n"
        "os.execv('/bin/sh', ['sh', '-c', 'ls -l /proc/$$/fd; grep SigCgt /proc/$$/status'])\n"
    )
    assert "lllaunch-stacks" not in out
    assert int(out.split("SigCgt:")[1], 16) & 1 << 48 == 0


def test_a_process_that_arms_itself_again_has_a_file_of_its_own() -> None:
    # As in a worker that starts workers by fork: their signals are reset.
    out = run(
        "dump.arm()\n"
        "mine = os.stat(f'/proc/self/fd/{files()[0]}').st_ino\n"
        "if os.fork() == 0:\n"
        "    signal.signal(dump.SIGNUM, signal.SIG_DFL)\n"
        "    dump.arm()\n"
        "    own = os.stat(f'/proc/self/fd/{files()[0]}').st_ino\n"
        "    print(len(files()), own != mine, catches(), 'line' in dumped(), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(os.stat(f'/proc/self/fd/{files()[0]}').st_size)\n"
    )
    assert out.split() == ["1", "True", "True", "True", "0"]


def test_a_file_of_the_users_under_the_inherited_number_is_left_alone() -> None:
    out = run(
        "dump.arm()\n"
        "(fd,) = files()\n"
        "os.dup2(1, fd)\n"
        "if os.fork() == 0:\n"
        "    dump.arm()\n"
        "    os.write(fd, b'still open')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert out == "still open"


def test_where_it_cannot_be_armed_it_goes_on() -> None:
    out = run(
        "import resource\n"
        "held = [os.dup(0) for _ in range(5)]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, held[-1] + 1))\n"
        "dump.arm()\n"
        "os.close(held.pop())\n"
        "print(catches())\n"
        "os.close(held.pop())\n"
        "dump.arm()\n"
        "print(catches())\n"
    )
    # Two descriptors are needed while it is armed.
    assert out.split() == ["False", "True"]


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_pyspy_that_hangs_fails_or_is_missing(tmp_path: Path) -> None:
    hangs = program(tmp_path / "hangs", "exec sleep 1000")
    told = pyspy.spy(hangs, [1, 2, 3, 4, 5], time.monotonic() + 0.3, lambda: False)
    assert sorted(told) == [1, 2, 3, 4, 5]
    assert {spied.text for spied in told.values()} == {""}
    assert told[1].why_not.startswith("it did not end within")
    assert "no time left" in " ".join(spied.why_not for spied in told.values())
    # A second look may succeed.
    fails = program(tmp_path / "fails", f"echo x >> {tmp_path}/tried; echo 'Error: no' >&2; exit 1")
    assert pyspy.spy(fails, [7], time.monotonic() + 30, lambda: False) == {
        7: pyspy.Spied("", "Error: no")
    }
    assert (tmp_path / "tried").read_text() == "x\nx\n"
    missing = str(tmp_path / "missing")
    told = pyspy.spy(missing, [7], time.monotonic() + 30, lambda: False)
    assert told[7].text == ""
    # The system says so, or the program that would have become py-spy.
    assert told[7].why_not.endswith(f"{missing}: No such file or directory")
    assert pyspy.spy(hangs, [7], time.monotonic() + 30, lambda: True)[7].text == ""
