"""A real Slurm on this machine: each of its hosts is a set of namespaces, each daemon a child."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support import launching
from support.launching import gone, until

from cluster import networks
from cluster.networks import Network
from lllaunch.linux import proc

COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
_DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = 4
# They are made up; each is /dev/null by its number, as Slurm counts device nodes alone.
GPUS = 8

# Far more than Slurm takes for what it does by itself: it ends a job within 7 s, puts one back in
# 13, and misses a node after some 15.
WAIT = 2 * launching.WAIT

# The first process of a host. It takes in the exit statuses of all orphans there.
_HOST = """
echo "$1" >/proc/sys/kernel/hostname
mount --bind "$2/etc/hosts" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
trap '' CHLD
: >"$2/run/$1"
exec sleep infinity
"""

# A job that is put back starts again when its credential is over (cred_expire), a node is missed
# after SlurmdTimeout. Tests take job 4 for one that never was.
_CONF = """
ClusterName=test
FirstJobId=1000
SlurmctldHost=login({login})
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge,cred_expire=5
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=5
TCPTimeout=2
KillWait=5
InactiveLimit=0
MinJobAge=3600
Waittime=0
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdSpoolDir={root}/spool/%n
StateSaveLocation={root}/state
NodeName=node[0-{last}] CPUs=16 RealMemory=64000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high PriorityTier=10 PreemptMode=OFF
"""


def what_is_missing() -> str:
    """Return why there can be no Slurm here, empty if there can."""
    programs = (*_DAEMONS, *COMMANDS, "nsenter", "setsid")
    if without := [each for each in programs if shutil.which(each) is None]:
        return f"there is no {', '.join(without)}: see .ci/run"
    return networks.what_is_missing()


class Slurm:
    """A cluster: ``node0`` and so on, and ``login``, where the commands are given."""

    nodes = NODES

    def __init__(self, network: Network) -> None:
        self._network = network
        # sockets below it have a length, and munge wants all to be able to come to its own
        self.root = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        self.root.chmod(0o755)
        self.tools = self.root / "tools"
        self._conf = self.root / "etc" / "slurm.conf"
        self._partitions_changed = False
        # by their names; of a host that is what made its namespaces
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # Up and down

    def up(self) -> None:
        """Bring it up, or bring back nodes that are down."""
        if not self.tools.exists():
            self._write()
        key = f"--key-file={self.root}/etc/munge.key"
        socket = f"--socket={self.root}/run/munge"
        others = [f"--{name}-file={self.root}/run/munge.{name}" for name in ("pid", "seed")]
        self._daemon("munged", ["munged", "--foreground", key, socket, *others])
        until((self.root / "run" / "munge").exists, "munged")
        self._host("login", self.nodes)
        self._start_controller()
        for number in range(self.nodes):
            name = f"node{number}"
            self._host(name, number, "--pid", "--fork", "--kill-child", "--mount-proc")
            slurmd = self._on(name, "slurmd", "-D", "-N", name, where=str(self.root))
            self._daemon(f"slurmd of {name}", slurmd)
        patiently(lambda: len(self._idle()) == self.nodes, "idle nodes")
        # some of what they say of each other comes later
        patiently(self._works, "a job on all nodes")

    def down(self) -> None:
        """Take it down; nothing is left of it."""
        for name in list(self._hosts):
            self._end_host(name)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def _write(self) -> None:
        for name in ("etc", "run", "log", "spool", "state", "dev", "tools"):
            (self.root / name).mkdir()
        (self.root / "etc" / "munge.key").write_bytes(os.urandom(1024))
        (self.root / "etc" / "munge.key").chmod(0o600)
        addresses = [self._network.address(number) for number in range(self.nodes + 1)]
        names = [*(f"node{number}" for number in range(self.nodes)), "login"]
        # a peer's address is looked up in the form that it has for a socket of IPv6, too
        lines = [
            f"{address} {name}\n::ffff:{address} {name}"
            for address, name in zip(addresses, names, strict=True)
        ]
        (self.root / "etc" / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        for number in range(GPUS):
            os.mknod(self.root / "dev" / f"nvidia{number}", 0o20666, os.makedev(1, 3))
        files = f"{self.root}/dev/nvidia[0-{GPUS - 1}]"
        (self.root / "etc" / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={files}\n")
        last = self.nodes - 1
        self._usual = _CONF.format(root=self.root, login=addresses[-1], last=last, gpus=GPUS)
        self._conf.write_text(self._usual)

    def _host(self, name: str, number: int, *namespaces: str) -> None:
        """Make a host on a machine of the network, unless it is there."""
        if name in self._hosts:
            return
        self._network.mend(number)
        ready = self.root / "run" / name
        ready.unlink(missing_ok=True)
        apart = ["nsenter", f"--net=/run/netns/{self._network.namespace(number)}", "unshare"]
        first = ["--uts", "--mount", *namespaces, "sh", "-c", _HOST, "sh", name, str(self.root)]
        self._hosts[name] = self._started(f"host {name}", [*apart, *first])
        until(ready.exists, f"host {name}")
        if name == "login":
            self._write_tools()

    def _end_host(self, name: str) -> None:
        """End a host's first process, and with it, on a node, all others."""
        host = self._hosts.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(_first_of(host), signal.SIGKILL)
        host.wait()

    def _daemon(self, name: str, words: Sequence[str]) -> None:
        running = self._daemons.get(name)
        if running is None or running.poll() is not None:
            self._daemons[name] = self._started(name, words)

    def _started(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.root / "log" / name).open("ab") as log:
            return subprocess.Popen(
                words,
                env={key: each for key, each in os.environ.items() if not key.startswith("SLURM_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the tests, which then take all of it down
                start_new_session=True,
            )

    def _start_controller(self) -> None:
        self._daemon("slurmctld", self._on("login", "slurmctld", "-D", where=str(self.root)))
        patiently(self._answers, "an answer of slurmctld")

    def _works(self) -> bool:
        wide = f"-N{self.nodes}"
        words = self.command("srun", "-Q", wide, "--ntasks-per-node=1", "--mem=1", "-t1", "true")
        return _asked(words).returncode == 0

    def _write_tools(self) -> None:
        """Write Slurm's commands as they are called from outside: they enter ``login``.

        In a job, which inherits PATH, they are themselves.
        """
        enter = " ".join(self._on("login", where='"$PWD"'))
        for name in COMMANDS:
            real = shutil.which(name)
            path = self.tools / name
            path.write_text(
                f'#!/bin/sh\n[ -n "$SLURM_JOB_ID" ] && exec {real} "$@"\nexec {enter} {real} "$@"\n'
            )
            path.chmod(0o755)

    # Commands

    def _on(self, name: str, *words: str, where: str = "") -> list[str]:
        """Return what a command is on a host; its working directory is the caller's."""
        process = _first_of(self._hosts[name])
        inside = ["--net", "--uts", "--mount", *(["--pid"] if name != "login" else [])]
        conf = f"SLURM_CONF={self.root}/etc/slurm.conf"
        entered = ["nsenter", f"--target={process}", *inside, f"--wd={where or os.getcwd()}"]
        return [*entered, "env", conf, *words]

    def command(self, *words: str) -> list[str]:
        """Return what a command is on the login node."""
        return self._on("login", *words)

    def call(self, *words: str) -> str:
        """Call a command on the login node; return what it writes to standard output."""
        return _call(self.command(*words))

    def on(self, node: int, *words: str) -> str:
        """Call a command on a node; return what it writes to standard output."""
        return _call(self._on(f"node{node}", *words))

    def sbatch(self, *words: str) -> str:
        """Submit a job; return its id."""
        return self.call("sbatch", "--parsable", *words).strip()

    # What becomes of jobs

    def facts(self, id: str) -> dict[str, str]:  # noqa: A002
        """Return what ``scontrol show job`` says of a job, empty if it does not know it."""
        words = self.command("scontrol", "--oneliner", "show", "job", id)
        done = _asked(words)
        return dict(re.findall(r"([\w:/]+)=(\S*)", done.stdout.split("\n")[0]))

    def state(self, id: str) -> str:  # noqa: A002
        """Return a job's state, empty if Slurm does not know it."""
        return self.facts(id).get("JobState", "")

    def until_state(self, id: str, *states: str) -> str:  # noqa: A002
        try:
            patiently(lambda: self.state(id) in states, f"job {id}: {', '.join(states)}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.facts(id)}") from None
        return self.state(id)

    def until_over(self, id: str) -> str:  # noqa: A002
        """Wait until a job has ended; return its state."""
        states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
        return self.until_state(id, *states)

    def queue(self) -> list[str]:
        """Return the ids and states of all jobs in the queue."""
        return self.call("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    # What is done to the cluster

    def configure(self, **settings: object) -> None:
        """Change settings in ``slurm.conf``, until the end of the test."""
        for name, value in settings.items():
            others = re.sub(rf"^{name}=.*\n", "", self._conf.read_text(), flags=re.MULTILINE)
            self._conf.write_text(f"{name}={value}\n{others}")
        self._read_again()

    def _read_again(self) -> None:
        """Let Slurm read its settings: those that only a restart of it changes, too."""
        with self.without_controller():
            pass
        self.call("scontrol", "reconfigure")

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """Nobody answers within the block; jobs go on."""
        self._daemons["slurmctld"].terminate()
        self._daemons["slurmctld"].wait(WAIT)
        try:
            yield
        finally:
            self._start_controller()

    def _answers(self) -> bool:
        done = _asked(self.command("scontrol", "ping"))
        return done.returncode == 0 and "UP" in done.stdout

    def partition(self, name: str, **settings: object) -> None:
        """Change a partition, such as its ``GraceTime``, until the end of the test."""
        changes = [f"{key}={value}" for key, value in settings.items()]
        self.call("scontrol", "update", f"partition={name}", *changes)
        self._partitions_changed = True

    def cut_power(self, node: int) -> None:
        """End all of a node at once. Slurm sees it after some 15 s; `up` brings it back."""
        first = _first_of(self._hosts[f"node{node}"])
        self._end_host(f"node{node}")
        # not even a refusal comes from there
        self._network.cut(node)
        until(lambda: gone(first), f"the end of node{node}")

    def reset(self) -> None:
        """Cancel what is left, and take changes back."""
        if self.queue():
            self.call("scancel", "--user", str(os.getuid()))
        self._restore()
        patiently(lambda: not self.queue(), "an empty queue")
        # Slurm may not have missed a node yet
        if len(self._hosts) <= self.nodes or len(self._idle()) < self.nodes:
            self.up()

    def _idle(self) -> list[str]:
        """Return the nodes that jobs can have."""
        return self.call("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split()

    def _restore(self) -> None:
        if self._conf.read_text() != self._usual:
            self._conf.write_text(self._usual)
            self._read_again()
        elif self._partitions_changed:
            self.call("scontrol", "reconfigure")
        self._partitions_changed = False


def _first_of(host: subprocess.Popen[bytes]) -> int:
    """Return the first process of a host, as it is called out here."""
    return next(iter(proc.children(host.pid)), host.pid)


def _asked(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)


def _call(words: list[str]) -> str:
    done = _asked(words)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def patiently(look: Callable[[], Any], what: str) -> Any:
    """Wait as `until` does, and leave the two cores of a small machine to others meanwhile."""
    deadline = time.monotonic() + WAIT
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {WAIT:g} s in vain for {what}"
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """Bring up a cluster, and take it down at the end."""
    network = Network(NODES + 1)
    with network.made():
        cluster = Slurm(network)
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()
