"""Performing a scenario: a project, launchers, faults, and all that can be seen of them.

A scenario is performed in a process of its own, which adopts whatever becomes an orphan below it.
So what is left alive is certain, and what is signalled is recognised as a descendant first.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import fnmatch
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lllaunch.linux import proc
from lllaunch.linux.process import set_child_subreaper
from tests.faults.scenarios import Fault, Scenario
from tests.faults.worker import LEDGER
from tests.support.launching import until

_HERE = Path(__file__).parent
_BYSTANDER = str(_HERE / "bystander.py")
_TICK = 0.003
_PATIENCE = 60.0
"""Seconds after the last fault in which every launcher must have ended."""
_SETTLE = 30.0
"""Seconds after the end of the last launcher in which all that it had started must be gone."""
_SMALL_PIPE = 4096
_CGROUPS = Path("/sys/fs/cgroup")
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x20000, 0x4000, 1 << 18, 2


class Unable(Exception):
    """This machine, or this user, cannot perform the scenario; the text says why."""


@dataclass
class Launched:
    """A launcher.

    Attributes:
        name: the value of ``tag`` on its command line, or ``resume``.
        directory: its output directory, if the command line names one.
        status: its exit status, negative for a signal; None until it has ended.
        ended: when, nanoseconds since the epoch.
        shown: what it and the workers' tees wrote to its console, by stream (``out``, ``err``).
        gone: the console was closed.
    """

    name: str
    pid: int
    directory: Path | None
    status: int | None = None
    ended: int = 0
    shown: dict[str, bytearray] = field(default_factory=dict)
    gone: bool = False
    deaf_until: float = 0.0
    pipes: dict[str, int] = field(default_factory=dict)

    def read(self, most: int = 1 << 16) -> bool:
        """Read what the console holds; False if that was nothing."""
        some = False
        for stream, fd in list(self.pipes.items()):
            try:
                data = os.read(fd, most)
            except BlockingIOError:
                continue
            if data:
                self.shown[stream] += data
                some = True
            else:
                os.close(self.pipes.pop(stream))
        return some

    def close(self) -> None:
        """Close the console's end."""
        while self.pipes:
            os.close(self.pipes.popitem()[1])


@dataclass(frozen=True)
class Injected:
    """A fault that happened.

    Attributes:
        time: when, nanoseconds since the epoch.
        pid: of the process that it hit, else 0.
        running: keys of the workers that had begun, not ended, and were alive.
    """

    fault: Fault
    time: int
    pid: int = 0
    running: tuple[str, ...] = ()


@dataclass
class Observed:
    """All that is known after a scenario.

    Attributes:
        root: directory with ``project``, ``ledger`` and ``tmp``.
        run_dir: the directory of the run or sweep.
        hung: names of launchers that had to be ended by force.
        left: processes that were still alive, in words.
        bystanders: for each, whether it lives, and the signals that it got.
        debris: files, directories and cgroups that were left in places that belong to nobody.
        entries: of the ledger.
    """

    scenario: Scenario
    root: Path
    run_dir: Path
    launched: list[Launched] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    bystanders: list[tuple[bool, list[str]]] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    debris: list[str] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Resumed:
    """A launcher that goes on with a sweep: its index, and what there was before it.

    Attributes:
        entries: how many the ledger had.
        finished: jobs that had succeeded.
    """

    launched: int
    entries: int
    journal: bytes
    finished: tuple[int, ...]


class World:
    """What a scenario happens in; its root is an empty directory of its own."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self.scenario = scenario
        self.root = root
        self.project = root / "project"
        self.ledger = root / "ledger"
        small = any(fault.what == "fill" for fault in scenario.faults)
        name = "sweep" if scenario.jobs else "small/run" if small else "run"
        self.run_dir = self.project / name
        self.seen = Observed(scenario, root, self.run_dir)
        self._begun: dict[str, float] = {}
        self._facts: dict[int, proc.ProcessFacts] = {}
        self._ledger_offset = 0
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._statuses: dict[int, int] = {}
        self._pids_cgroup: Path | None = None
        self._journal_size = 0
        self._records: list[Any] = []

    # Before

    def prepare(self) -> None:
        """Make the project; be the one who adopts orphans.

        Raises:
            Unable: a mount or a cgroup is needed that may not be made.
        """
        set_child_subreaper(True)
        for name in ("project/conf/exp", "ledger", "tmp", "home", "xdg"):
            (self.root / name).mkdir(parents=True, mode=0o700)
        self._isolate()
        shutil.copy(_HERE / "worker.py", self.project)
        s = self.scenario
        (self.ledger / "acts.json").write_text(json.dumps(s.acts, default=vars))
        (self.ledger / "ledger.jsonl").touch()
        entrypoint, args = {
            "script": ("worker.py", ["${tag}"]),
            "function": ("worker:main", ["${tag}"]),
            "module": ("-m worker", ["${tag}"]),
            "program": (sys.executable, ["-S", "-E", "worker.py", "${tag}"]),
        }[s.form]
        node = {
            "entrypoint": entrypoint,
            "args": args,
            # by which the checks know what is teed
            "log_line_prefix": "[default${worker:local_rank}]:",
            "collapse": True,
            **s.launch,
        }
        text = json.dumps({"launch": node, "tag": "a"})
        # JSON is YAML; interpolations of the config stay as they are
        (self.project / "conf/exp/test.yaml").write_text("# @package _global_\n" + text)
        self._start_bystander()

    def _isolate(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        small = self.run_dir.parent if self.run_dir.parent != self.project else None
        if self.scenario.cgroups and not small:
            return
        if libc.unshare(_CLONE_NEWNS):
            raise Unable("no mount namespace may be made")
        if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
            raise Unable("mounts may not be made private")
        if not self.scenario.cgroups:
            for line in Path("/proc/self/mounts").read_text().splitlines():
                _, place, kind = line.split()[:3]
                if kind == "cgroup2":
                    libc.umount2(place.encode(), _MNT_DETACH)
        if small:
            small.mkdir()
            if libc.mount(b"tmpfs", os.fsencode(small), b"tmpfs", 0, b"size=4m"):
                raise Unable("no file system may be mounted")

    def _start_bystander(self) -> None:
        command = [sys.executable, "-I", "-S", _BYSTANDER, self._record("apart")]
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, env={}, start_new_session=True, **quiet)
        # Popen's own clean-up would take exit statuses: nobody keeps the object
        process.returncode = 0
        until(lambda: self._bystanders("apart"), "the bystander", _PATIENCE)

    def _record(self, name: str) -> str:
        return str(self.root / f"bystander-{name}")

    def _bystanders(self, name: str) -> list[int]:
        """Process ids of a bystander and its daemon."""
        lines = proc.read_text(self._record(name)).splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("alive")]

    # The launchers

    def launch(self, name: str, *more: str) -> Launched:
        """Start a launcher; it has the faults that are there from the beginning."""
        s = self.scenario
        default = any(fault.target == "default" for fault in s.faults)
        directory = None if default else self.run_dir
        command = [sys.executable, "-m", "lllaunch", "+exp=test"]
        if s.jobs:
            more = more or ("hydra.sweep.dir=sweep",)
            directory = self.project / more[0].partition("=")[2]
            command += ["-m", f"tag={','.join(map(str, s.jobs))}", *more]
        else:
            command += [f"tag={name}", *([] if default else [f"hydra.run.dir={self.run_dir}"])]
        if s.native is not None and not self.seen.launched:
            program = [sys.executable, "-I", "-S", _BYSTANDER, self._record("native")]
            script = '"$1" "$2" "$3" "$4" "$5" "$6" </dev/null >/dev/null 2>&1 & shift 6; exec "$@"'
            command = ["sh", "-c", script, "sh", *program, str(s.native), *command]
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "XDG_RUNTIME_DIR": str(self.root / "xdg"),
            "XDG_STATE_HOME": str(self.root / "home"),
            LEDGER: str(self.ledger),
            "LLLAUNCH_PRETEND_GPUS": ",".join(f"{letter}-{os.getpid()}" for letter in "ab"),
        }
        streams = ["out"] if s.merged else ["out", "err"]
        pipes = {stream: os.pipe() for stream in streams}
        for reading, _ in pipes.values():
            os.set_blocking(reading, False)
            if s.merged or any(fault.what == "block" for fault in s.faults):
                fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _SMALL_PIPE)
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=pipes["out"][1],
            stderr=pipes["out" if s.merged else "err"][1],
            preexec_fn=self._limit,  # noqa: PLW1509 - no thread is in this process
        )
        for _, writing in pipes.values():
            os.close(writing)
        # it is waited for with all the others
        process.returncode = 0
        one = Launched(name, process.pid, directory)
        one.pipes = {stream: pair[0] for stream, pair in pipes.items()}
        one.shown = {stream: bytearray() for stream in streams}
        self.seen.launched.append(one)
        return one

    def _limit(self) -> None:
        for fault in self.scenario.faults:
            if fault.what == "files":
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(fault.amount),) * 2)
            if self._pids_cgroup is not None:
                (self._pids_cgroup / "cgroup.procs").write_text("0")

    def limit_processes(self, most: int) -> None:
        """Let what is launched from now on have so many tasks, itself included."""
        directory = _CGROUPS / "pids" / f"lllaunch-faults-{os.getpid()}"
        try:
            directory.mkdir()
            (directory / "pids.max").write_text(str(most))
        except OSError as e:
            raise Unable(f"no cgroup that limits processes may be made: {e}") from e
        self._pids_cgroup = directory

    # Faults

    def drive(self, faults: Sequence[Fault]) -> None:
        """Let faults happen until all launchers have ended."""
        self._begun = {"start": time.monotonic()}
        pending = list(faults)
        last = time.monotonic()
        while any(one.status is None for one in self.seen.launched):
            self._look()
            for fault in list(pending):
                done = self._due(fault)
                if done:
                    last = time.monotonic()
                    self._begun["fault"] = last
                if done is not False:
                    pending.remove(fault)
            self._perform_later()
            if time.monotonic() > last + _PATIENCE and not self._later:
                self._force()
        for one in self.seen.launched:
            one.deaf_until = 0.0
        self._settle()

    def _due(self, fault: Fault) -> bool | None:
        """Let a fault happen if its moment has come; None if its target never came."""
        begun = self._begun.get(fault.at)
        if begun is None or time.monotonic() < begun + fault.delay:
            return False
        if self._inject(fault):
            return True
        return None if time.monotonic() > begun + fault.delay + 2.0 else False

    def _perform_later(self) -> None:
        now = time.monotonic()
        for item in [item for item in self._later if item[0] <= now]:
            self._later.remove(item)
            item[1]()

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, do))

    def _inject(self, fault: Fault) -> bool:
        if fault.what == "signal":
            return self._inject_signal(fault)
        gone = fault.what in {"remove", "rename"} and not self._place(fault).exists()
        if not gone:
            self.note(fault)
            getattr(self, f"_{fault.what}")(fault)
        return not gone

    def _place(self, fault: Fault) -> Path:
        return self.run_dir / "sweep.jsonl" if fault.target == "journal" else self.run_dir

    def note(self, fault: Fault, pid: int = 0) -> None:
        """Write down that a fault happens now."""
        entries = self.seen.entries
        ended = {entry["key"] for entry in entries if entry["what"] == "end"}
        running = []
        for entry in entries:
            facts = self._facts.get(entry["pid"])
            begun = entry["what"] == "start" and entry["key"] not in ended
            if begun and facts is not None and proc.same_process(facts):
                running.append(entry["key"])
        self.seen.injected.append(Injected(fault, time.time_ns(), pid, tuple(running)))

    def _inject_signal(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        signum = signal.Signals[fault.name]
        self.note(fault, target.pid)
        self._send(target, signum)
        if fault.hold is not None:
            self._after(fault.hold, lambda: self._send(target, signal.SIGCONT))
        if fault.again is not None:
            self._after(fault.again, lambda: self._send(target, signum))
        return True

    def _target(self, fault: Fault) -> proc.ProcessFacts | None:
        """A live process of the kind that a fault hits, which descends from this one."""
        below = {process.pid: process for process in _below()}
        launchers = [one.pid for one in self.seen.launched if one.status is None]
        above = {*launchers, *self._job_pids()}
        if fault.target == "launcher":
            choices = launchers[-1:]
        elif fault.target == "job":
            choices = self._job_pids()
        elif fault.target == "spawner":
            children = [pid for pid, process in below.items() if process.ppid in above]
            choices = [pid for pid in children if "lllaunch.spawner" in proc.command(pid, 4096)]
        else:
            kinds = [(_kind(entry), entry["pid"]) for entry in self.seen.entries]
            choices = [pid for kind, pid in kinds if kind == fault.target]
        choices = [pid for pid in choices if pid in below]
        return below[choices[int(fault.delay * 1000) % len(choices)]] if choices else None

    def _job_pids(self) -> list[int]:
        started = [record for record in self._journal() if record.get("type") == "started"]
        return [record["pid"] for record in started if isinstance(record["pid"], int)]

    def _journal(self) -> list[Any]:
        """The records of the sweep's journal that can be read."""
        try:
            data = (self.run_dir / "sweep.jsonl").read_bytes()
        except OSError:
            return []
        if len(data) != self._journal_size:
            self._journal_size, self._records = len(data), []
            for line in data.splitlines():
                with contextlib.suppress(ValueError):
                    self._records.append(json.loads(line))
        return self._records

    @staticmethod
    def _send(process: proc.ProcessFacts, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(process.pid)
            try:
                if proc.same_process(process):
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)

    def _fill(self, fault: Fault) -> None:
        filler = self.run_dir.parent / "filler"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        os.truncate(filler, max(0, filler.stat().st_size - int(fault.amount)))
        if fault.hold is not None:
            self._after(fault.hold, lambda: filler.unlink(missing_ok=True))

    def _remove(self, fault: Fault) -> None:
        path = self._place(fault)
        path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)

    def _rename(self, _: Fault) -> None:
        self.run_dir.rename(self.run_dir.with_name("moved"))

    def _close(self, _: Fault) -> None:
        for one in self.seen.launched:
            one.close()
            one.gone = True

    def _block(self, fault: Fault) -> None:
        for one in self.seen.launched:
            # without an end: longer than a launcher waits for its console
            one.deaf_until = time.monotonic() + (fault.hold or 12.0)

    def _second(self, fault: Fault) -> None:
        more = ["hydra.sweep.dir=other" if fault.target == "gpus" else "hydra.sweep.dir=sweep"]
        self.launch("b", *(more if self.scenario.jobs else ()))

    # What is seen

    def _look(self) -> None:
        """Take in what has happened, or wait a moment for it."""
        now = time.monotonic()
        open_ones = [one for one in self.seen.launched if one.pipes and one.deaf_until <= now]
        fds = [fd for one in open_ones for fd in one.pipes.values()]
        if fds:
            select.select(fds, [], [], _TICK)
            for one in open_ones:
                one.read(_SMALL_PIPE if self.scenario.merged else 1 << 16)
        if not fds or now + _TICK > time.monotonic():
            time.sleep(_TICK)
        self._read_ledger()
        if self.scenario.jobs:
            types = {record.get("type") for record in self._journal()}
            for name in {"started", "ended"} & types:
                self._begun.setdefault(str(name), time.monotonic())
        if (self.run_dir / "result.json").exists():
            self._begun.setdefault("result", time.monotonic())
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        for one in self.seen.launched:
            if one.status is None and one.pid in self._statuses:
                one.status = self._statuses[one.pid]
                one.ended = time.time_ns()

    def _read_ledger(self) -> None:
        with open(self.ledger / "ledger.jsonl", "rb") as file:
            file.seek(self._ledger_offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._ledger_offset += len(data)
        for line in data.splitlines():
            entry = json.loads(line)
            self.seen.entries.append(entry)
            if entry["pid"] not in self._facts and (facts := proc.facts(entry["pid"])):
                self._facts[entry["pid"]] = facts
            anchor = {"start": "worker", "kin": "kin", "end": "end"}.get(entry["what"])
            if anchor:
                self._begun.setdefault(anchor, time.monotonic())

    # After

    def _force(self) -> None:
        hung = [one for one in self.seen.launched if one.status is None]
        self.seen.hung += [one.name for one in hung]
        for one in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
            until(lambda one=one: self._ended(one), f"the end of {one.name}", _PATIENCE)

    def _ended(self, one: Launched) -> bool:
        self._reap()
        return one.status is not None

    def _settle(self) -> None:
        """Read the consoles to their ends, which come when nobody is left who could write."""
        deadline = time.monotonic() + _SETTLE
        over = False
        while not over:
            over = not self.ours() or time.monotonic() > deadline
            for one in self.seen.launched:
                while one.read():
                    pass
            self._reap()
            time.sleep(5 * _TICK)
        self._read_ledger()

    def ours(self) -> list[proc.ProcessFacts]:
        """What lives of all that was started, bystanders left out."""
        apart = {pid for name in ("apart", "native") for pid in self._bystanders(name)}
        found = [process for process in _below() if process.pid not in apart]
        return [process for process in found if _BYSTANDER not in proc.command(process.pid, 4096)]

    def observe(self) -> Observed:
        """Write down the rest of what can be seen, and end everything that is alive."""
        kinds = {entry["pid"]: _kind(entry) or "worker" for entry in self.seen.entries}
        for process in self.ours():
            kind = kinds.get(process.pid, "?")
            text = f"{kind} {process.pid} ({process.state}): {proc.command(process.pid)}"
            self.seen.left.append(text)
        for name in ("apart", "native"):
            lines = proc.read_text(self._record(name)).splitlines()
            signals = [line for line in lines if line.startswith("signal")]
            for pid in self._bystanders(name):
                facts = proc.facts(pid)
                well = facts is not None and facts.state not in "ZXTt"
                self.seen.bystanders.append((well, signals))
        self.seen.debris = self._debris()
        self.end()
        return self.seen

    def _debris(self) -> list[str]:
        found = [str(path) for path in (self.root / "tmp").iterdir()]
        pids = {str(pid) for pid in (*self._job_pids(), *(one.pid for one in self.seen.launched))}
        # unlike Path.glob, os.walk passes over what is removed meanwhile
        for top, names, _ in os.walk(_CGROUPS):
            for name in fnmatch.filter(names, "lllaunch-*-*"):
                if name.rpartition("-")[2] in pids:
                    found.append(os.path.join(top, name))
                    with contextlib.suppress(OSError):
                        os.rmdir(found[-1])
        return found

    def end(self) -> None:
        """End everything below this process, by process id, and take it in."""
        deadline = time.monotonic() + _PATIENCE
        while (below := _below()) and time.monotonic() < deadline:
            for process in below:
                self._send(process, signal.SIGKILL)
            self._reap()
            time.sleep(_TICK)
        self._reap()
        for one in self.seen.launched:
            one.close()
        if self._pids_cgroup is not None:
            self._pids_cgroup.rmdir()
            self._pids_cgroup = None


def _below() -> list[proc.ProcessFacts]:
    """All live descendants of this process."""
    found, queue = [], [os.getpid()]
    while queue:
        for pid in proc.children(queue.pop()):
            queue.append(pid)
            facts = proc.facts(pid)
            if facts is not None and facts.state not in "ZX":
                found.append(facts)
    return found


def _kind(entry: dict[str, Any]) -> str | None:
    """What an entry of the ledger says that a process is: a worker, or kin of one."""
    return "worker" if entry["what"] == "start" else entry.get("kind")


def perform(scenario: Scenario, root: Path) -> Observed:
    """Perform a scenario from its beginning to the end of all that it started.

    Raises:
        Unable: it cannot be performed here.
    """
    world = World(scenario, root)
    try:
        world.prepare()
        limits = [fault for fault in scenario.faults if fault.what in {"files", "processes"}]
        for fault in limits:
            if fault.what == "processes":
                world.limit_processes(int(fault.amount))
        world.launch("a")
        for fault in limits:
            world.note(fault)
        others = [fault for fault in scenario.faults if fault not in limits]
        world.drive([fault for fault in others if fault.what != "damage"])
        if scenario.jobs:
            _resume(world)
        return world.observe()
    finally:
        world.end()


def _resume(world: World) -> None:
    """Go on with a sweep until a launcher says that it is done with it."""
    for number in range(3):
        journal = world.run_dir / "sweep.jsonl"
        if not journal.exists():
            return
        for fault in world.scenario.faults:
            if fault.what == "damage" and number == 0:
                world.note(fault)
                data = journal.read_bytes()
                journal.write_bytes(damaged(data, fault.name, fault.amount))
        seen, done = world.seen, finished(world.run_dir)
        counts = len(seen.launched), len(seen.entries)
        seen.resumed.append(Resumed(*counts, journal.read_bytes(), done))
        world.launch("resume", "hydra.launcher.resume=sweep")
        world.drive(())
        if seen.launched[-1].status in {0, 1, 2, 6}:
            return


def finished(sweep: Path) -> tuple[int, ...]:
    """Numbers of the jobs whose results say that they succeeded."""
    numbers = []
    for path in sweep.glob("*/result.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text())["state"] == "succeeded":
                numbers.append(int(path.parent.name))
    return tuple(sorted(numbers))


def damaged(journal: bytes, how: str, where: float) -> bytes:
    """Return a journal with damage."""
    lines = journal.splitlines(keepends=True)
    at, which = int(where * len(journal)), int(where * len(lines))
    torn = len(journal) - 1 - at % max(1, len(lines[-1]) - 1)
    before, line, rest = b"".join(lines[:which]), lines[which], b"".join(lines[which + 1 :])
    huge = line.replace(b'"time_ns": 1', b'"time_ns": 99999999999999999999999999991')
    retyped = line.replace(b'"type": "', b'"type": ["').replace(b'", ', b'"], ', 1)
    return {
        "torn": journal[:torn],
        "flipped": journal[:at] + bytes([journal[at] ^ 0x20]) + journal[at + 1 :],
        "zeros": journal[:at] + bytes(min(40, len(journal) - at)) + journal[at + 40 :],
        "cut": before,
        "garbage": before + b"no JSON at all\n" + line + rest,
        "huge": before + huge + rest,
        "doubled": before + line + line + rest,
        "dropped": before + rest,
        "retyped": before + retyped + rest,
        "emptied": b"",
    }[how]
