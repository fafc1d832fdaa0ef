"""The same script under torchrun and under lllaunch: what it sees."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.project import Project

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

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
}


def test_a_worker_sees_the_same_under_torchrun_and_under_lllaunch(tmp_path: Path) -> None:
    project = Project(tmp_path / "my project")
    project.write("probe.py", PROBE)
    arguments = ("--lr", "0.1", "two words", "--amp")
    # Started by the same interpreter and with the same environment, so that what they add can be
    # compared; without coverage's variables, whose start-up file each would meet elsewhere.
    # torchrun leaves a directory of logs behind.
    env = {"TMPDIR": str(project.root)}
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    listed = ",".join(f"'{arg}'" for arg in ("ours", *arguments))
    options = "nproc: 2, tee: none, watchdog: none"
    project.experiment("same", f"{{entrypoint: probe.py, args: [{listed}], {options}}}")
    for ended in (
        project.python("-m", *torchrun, "probe.py", "theirs", *arguments, env=env),
        project.lllaunch("+exp=same", "hydra.run.dir=run", env=env),
    ):
        assert ended.returncode == 0, ended.stderr
    for rank in RANKS:
        theirs, ours = (
            json.loads((project.root / f"{who}.{rank}").read_text()) for who in ("theirs", "ours")
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
        assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"


# rank 1 needs the store after rank 0, whose process it waits for, has ended
FIRST_ENDS_FIRST = """
import os, sys
import torch.distributed as dist

dist.init_process_group("gloo")
own = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
if dist.get_rank() == 0:
    own.set("pid", str(os.getpid()))
    sys.exit(0)
pid = own.get("pid").decode()
while os.path.exists(f"/proc/{pid}"):
    pass
dist.new_group([1])
own.set("late", "1")
"""


@pytest.mark.parametrize("options", ["", ", start_method: spawn", ", preload: [torch]"])
def test_ranks_may_end_in_any_order(tmp_path: Path, options: str) -> None:
    project = Project(tmp_path)
    project.write("first.py", FIRST_ENDS_FIRST)
    project.experiment("first", f"{{entrypoint: first.py, nproc: 2{options}}}")
    ended = project.lllaunch("+exp=first")
    assert ended.returncode == 0, ended.stderr


def test_rank_0_opens_the_store_where_torchs_variable_says_so(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "own.py",
        """
        import os, torch.distributed as dist

        assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True)
        dist.init_process_group("gloo")
        """,
    )
    project.experiment("own", "{entrypoint: own.py}")
    ended = project.lllaunch("+exp=own", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert ended.returncode == 0, ended.stderr


def _without_the_c_librarys_own(mask: str) -> int:
    """A mask of signals without 32 and 33, which posix_spawn of glibc leaves ignored.

    No program can ask for them: glibc refuses, and sets them itself when it needs them.
    """
    return int(mask, 16) & ~(0b11 << 31)
