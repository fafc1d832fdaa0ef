"""The same script under torchrun and under lllaunch: what it sees."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.launching import Project

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

RANKS = (0, 1)
FATAL = (
    *(signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL),
    signal.SIGXCPU,
)

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
# what is compared by form, and why it differs
DIFFERENT = {
    "MASTER_ADDR": "another name of this host",
    "MASTER_PORT": "a free port of each attempt",
    "TORCHELASTIC_ERROR_FILE": "in the directory of the run",
    "TORCHELASTIC_RUN_ID": "made from that directory, unless --rdzv-id is given",
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
    """Take out what is there for crash.txt: one descriptor more, and fatal signals."""
    del ours["descriptors"][-1]
    caught = int(ours["masks"]["SigCgt:"], 16)
    fatal = sum(1 << number - 1 for number in FATAL)
    assert caught & fatal == fatal
    ours["masks"]["SigCgt:"] = caught & ~fatal


def _same_environment(theirs: Mapping[str, str], ours: Mapping[str, str], rank: int) -> None:
    assert ours.keys() - theirs.keys() == OURS_ALONE
    assert theirs.keys() - ours.keys() == set()
    differing = {name for name in theirs if theirs[name] != ours[name]}
    assert differing <= DIFFERENT.keys()
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


# by options that change them, or unless the watchdog is off
CHANGED = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "--signals-to-handle is for the launcher, not its workers",
    "TORCH_FR_BUFFER_SIZE": "torch records collectives, so that a hang can be explained",
}
# Runs that share options: what precedes the script, the script, and variables.
SHARED: dict[str, tuple[str, str, dict[str, str]]] = {
    "dashes": (
        (
            "--nproc-per-node=2 --standalone --role=trainer --max-restarts=1 --monitor-interval=0.1"
            " --start-method=spawn --redirects=3 --tee=0:3 --local-ranks-filter=0 --log-dir=logs"
            " --signals-to-handle=SIGTERM,SIGINT --shutdown-timeout=5 --event-log-handler=null"
            " --duplicate-stdout-filters=a,b --duplicate-stderr-filters=c"
        ),
        "see.py",
        {},
    ),
    "underscores": (
        (
            "--nproc_per_node 2 --nnodes 1:1 --rdzv_backend c10d --rdzv_endpoint localhost:0"
            " --rdzv_id seven --rdzv_conf timeout=90 --node_rank 0 --local_addr 127.0.0.1"
            " --virtual_local_rank -m"
        ),
        "see",
        {},
    ),
    "variables": (
        "--no-python",
        "python see.py",
        {
            "PET_NPROC_PER_NODE": "2",
            "PET_ROLE": "trainer",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": "29411",
            "OMP_NUM_THREADS": "3",
        },
    ),
    "a path": ("--run-path", "{here}/see.py", {}),
    "failure": ("--max-restarts=1", "see.py", {"FAILS": "1"}),
}
# torchrun's exit code of a failure is that of any traceback. Here 3 is for workers that failed, so
# that 1 and 2 are for runs that could not start.
EXIT_CODES = {0: 0, 1: 3}
NOT_SUPPORTED = {"--logs-specs", "--numa-binding"}
SEE = """
import json, os, sys
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(dict(os.environ), file)
assert sys.argv[2:] == ["--lr", "a=b", "-m", "", "${x}"], sys.argv
sys.exit(5 if "FAILS" in os.environ else 0)
"""


@pytest.mark.parametrize(
    "shared", [pytest.param("dashes", marks=pytest.mark.smoke), *[*SHARED][1:]]
)
def test_torchruns_options_mean_the_same(tmp_path: Path, shared: str) -> None:
    project = Project(tmp_path / "p")
    project.write("see.py", SEE)
    options, script, variables = SHARED[shared]
    words = [*options.split(), *script.format(here=project.root).split()]
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    env = {"TMPDIR": str(project.root), "PATH": path, **variables}
    arguments = ("--lr", "a=b", "-m", "", "${x}")
    theirs = project.python(
        *("-m", "torch.distributed.run", *words, f"{project.root}/theirs", *arguments), env=env
    )
    ours = project.lllaunch(*words, f"{project.root}/ours", *arguments, env=env)
    codes = theirs.returncode, ours.returncode
    files = {who: sorted(project.root.glob(f"{who}.*")) for who in ("theirs", "ours")}
    assert len(files["ours"]) == len(files["theirs"]) > 0, theirs.stderr + ours.stderr
    differing = set()
    for pair in zip(files["theirs"], files["ours"], strict=True):
        their, our = (json.loads(path.read_text()) for path in pair)
        differing |= {name for name in their if their[name] != our.get(name)}
        differing |= {name for name in our.keys() - their.keys() if name[:9] != "LLLAUNCH_"}
    assert EXIT_CODES[codes[0]] == codes[1], theirs.stderr + ours.stderr
    assert differing <= DIFFERENT.keys() | CHANGED.keys()
    assert ("TORCHELASTIC_RUN_ID" in differing) == ("--rdzv_id" not in options)


def test_every_option_of_torchrun_is_tried() -> None:
    from torch.distributed.run import get_args_parser

    tried = " ".join(options for options, _, _ in SHARED.values()).replace("_", "-")
    for action in get_args_parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if names and "--help" not in names:
            known = NOT_SUPPORTED | {"--module", *re.findall(r"--[\w-]+", tried)}
            known |= {f"--{name[4:].lower().replace('_', '-')}" for name in SHARED["variables"][2]}
            assert known & {*names}, names


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
