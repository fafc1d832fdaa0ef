"""The same script under torchrun and under lllaunch: what it sees, what it leaves, how it fails."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.project import Project, quiet_environment, result

# the same lines are measured where others run them

RANKS = (0, 1)
FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)

# what a worker can see of how it was started, written to ARGV[1].RANK
PROBE = """
import json, os, resource, signal, sys

with open("/proc/self/status") as status:
    masks = dict(line.split()[:2] for line in status if line.startswith(("Sig", "Shd")))
del masks["SigQ:"]
facts = {
    "environment": dict(os.environ),
    "arguments": sys.argv[2:],
    "script": [sys.argv[0], __file__, __name__, str(__spec__), __package__],
    "main": [sys.modules["__main__"].__dict__ is globals(), str(__builtins__), sorted(globals())],
    "flags": list(sys.flags),
    "executable": sys.executable,
    "sys.path": sys.path,
    "cwd": os.getcwd(),
    "write-through": [sys.stdout.write_through, sys.stderr.write_through],
    "encodings": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors],
    "stdin": os.readlink("/proc/self/fd/0"),
    "handlers": {
        signum.name: str(signal.getsignal(signum)).partition(" at 0x")[0]
        for signum in signal.Signals
    },
    "masks": masks,
    "open files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
}
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(facts, file)
"""

# what only one of the two sets, or the shell for each command
OURS_ALONE = {
    "LLLAUNCH_CRASH_FILE",
    "LLLAUNCH_HEARTBEAT",
    "LLLAUNCH_RESULT_FILE",
    "LLLAUNCH_RUN",
}
# what is compared by form
DIFFERENT = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
}


class Both:
    """A directory in which scripts run under both launchers, with two workers.

    Started by the same interpreter and with the same environment, so that what they add can be
    compared; without coverage's variables, whose start-up file each of them would meet elsewhere.
    """

    def __init__(self, project: Project) -> None:
        self.project = project

    def torchrun(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
        return self.project.python("-m", *command, *args, env=self._outer())

    def lllaunch(self, script: str, *args: str) -> subprocess.CompletedProcess[str]:
        listed = ",".join(f"'{arg}'" for arg in args)
        node = f"{{entrypoint: {script}, nproc: 2, args: [{listed}], tee: none, watchdog: none}}"
        self.project.experiment("same", node)
        return self.project.lllaunch("+exp=same", "hydra.run.dir=run", env=self._outer())

    @property
    def root(self) -> Path:
        return self.project.root

    @property
    def result(self) -> Any:
        return result(self.root / "run")

    def _outer(self) -> dict[str, str]:
        # torchrun leaves a directory of logs behind
        return quiet_environment() | {"TMPDIR": str(self.root)}


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(Project(tmp_path / "my project"))


def ended_well(*ended: subprocess.CompletedProcess[str]) -> None:
    for each in ended:
        assert each.returncode == 0, each.stderr


@pytest.mark.slow
def test_a_worker_sees_the_same_under_torchrun_and_under_lllaunch(both: Both) -> None:
    both.project.write("probe.py", PROBE)
    arguments = ("--lr", "0.1", "two words", "--amp")
    ended_well(
        both.torchrun("probe.py", "theirs", *arguments),
        both.lllaunch("probe.py", "ours", *arguments),
    )
    for rank in RANKS:
        theirs, ours = (
            json.loads((both.root / f"{who}.{rank}").read_text()) for who in ("theirs", "ours")
        )
        assert theirs["arguments"] == list(arguments)
        _same_environment(theirs.pop("environment"), ours.pop("environment"), rank)
        theirs["masks"]["SigIgn:"] = _without_the_c_librarys_own(theirs["masks"]["SigIgn:"])
        ours["masks"]["SigIgn:"] = _without_the_c_librarys_own(ours["masks"]["SigIgn:"])
        _take_out_faulthandlers(ours)
        theirs["masks"]["SigCgt:"] = int(theirs["masks"]["SigCgt:"], 16)
        assert ours == theirs


def _take_out_faulthandlers(ours: Any) -> None:
    """Take out what is there for crash.txt: one descriptor above 1000, and fatal signals."""
    (own,) = (name for name in ours["descriptors"] if int(name) > 1000)
    ours["descriptors"].remove(own)
    caught = int(ours["masks"]["SigCgt:"], 16)
    fatal = sum(1 << number - 1 for number in FATAL)
    assert caught & fatal == fatal
    ours["masks"]["SigCgt:"] = caught & ~fatal


def _same_environment(theirs: Mapping[str, str], ours: Mapping[str, str], rank: int) -> None:
    assert ours.keys() - theirs.keys() == OURS_ALONE
    assert theirs.keys() - ours.keys() == set()
    differing = {name for name in theirs if theirs[name] != ours[name]}
    assert differing <= DIFFERENT
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS"} <= theirs.keys() - differing
    assert ours["RANK"] == str(rank)
    for env in (theirs, ours):
        assert 0 < int(env["MASTER_PORT"]) < 2**16
        # names of this host, which need not be spelt the same
        assert env["MASTER_ADDR"] in {"localhost", "127.0.0.1"}
        assert env["TORCHELASTIC_RUN_ID"]
        error_file = Path(env["TORCHELASTIC_ERROR_FILE"])
        assert error_file.parts[-3:] == ("attempt_0", str(rank), "error.json")
        # theirs lends its workers a store of its own; ours lets rank 0 open one on that port
        assert env["TORCHELASTIC_USE_AGENT_STORE"] in {"True", "False"}


def _without_the_c_librarys_own(mask: str) -> int:
    """A mask of signals without 32 and 33, which posix_spawn of glibc leaves ignored.

    No program can ask for them: glibc refuses, and sets them itself when it needs them.
    """
    return int(mask, 16) & ~(0b11 << 31)


@pytest.mark.slow
def test_a_file_that_is_never_closed_has_the_same_bytes(both: Both) -> None:
    both.project.write(
        "leave.py",
        """
        import atexit, os, pathlib, sys, threading, zipfile

        here = pathlib.Path(sys.argv[1] + os.environ["RANK"])
        here.mkdir()
        text = open(here / "text", "w"); text.write("kept\\n" * 3000)
        raw = open(here / "raw", "wb", buffering=1 << 20); raw.write(bytes(range(256)) * 100)
        archive = zipfile.ZipFile(here / "archive", "w"); archive.writestr("member", "data")
        def hold():
            inner = open(here / "inner", "w"); inner.write("of a generator"); yield
        held = hold(); next(held)
        atexit.register(lambda: (here / "atexit").write_text(type(archive).__name__))
        class Last:
            def __del__(self, put=pathlib.Path.write_text, where=here / "del"): put(where, "ran")
        last = Last()
        threading.Timer(0.2, lambda: (here / "thread").write_text("joined")).start()
        print("written", end=" "); sys.stderr.write("to stderr")
        """,
    )
    ended_well(both.torchrun("leave.py", "theirs"), both.lllaunch("leave.py", "ours"))
    for rank in RANKS:
        theirs, ours = (_contents(both.root / f"{who}{rank}") for who in ("theirs", "ours"))
        assert theirs.keys() == {"text", "raw", "archive", "inner", "atexit", "del", "thread"}
        # the archive holds the time at which it was written
        assert theirs.pop("archive")[-22:-18] == ours.pop("archive")[-22:-18] == b"PK\x05\x06"
        assert ours == theirs
        log = both.root / f"run/attempt_0/{rank}"
        assert (log / "stdout.log").read_bytes() == b"written "
        assert (log / "stderr.log").read_bytes() == b"to stderr"


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


RAISES = """
import os, time
from {module} import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the weights are gone")
    time.sleep(100)

main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["torch.distributed.elastic.multiprocessing.errors", "lllaunch.multiprocessing.errors"],
)
def test_an_error_file_of_either_is_reported_by_both(both: Both, module: str) -> None:
    both.project.write("fail.py", RAISES.format(module=module))
    ours, theirs = both.lllaunch("fail.py"), both.torchrun("fail.py")
    assert ours.returncode == 3
    assert theirs.returncode == 1
    for ended in (ours, theirs):
        assert "ValueError: the weights are gone" in ended.stderr
        assert 'fail.py", line 8, in main' in ended.stderr
    assert "Root cause: rank 1" in ours.stderr
    assert "Root Cause" in theirs.stderr
    root = both.result["root_cause"]
    assert (root["rank"], root["cause"]["type"]) == (1, "Raised")
    assert root["cause"]["message"] == "ValueError: the weights are gone"
