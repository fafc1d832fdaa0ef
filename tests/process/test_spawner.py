"""The spawner with real workers, through its client."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, gone, text_of, until
from support.spawned import told

import lllaunch
from lllaunch.events import (
    Exited,
    OrphansGone,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.linux.cgroup import Cgroup
from lllaunch.linux.process import wait_readable
from lllaunch.run.excerpts import read_exit_call
from lllaunch.run.result import CalledExit
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.orphans import SETTLE_SECONDS
from lllaunch.spawner.protocol import Function, Module, Program, Script

ENDLESS = Program("sleep", ("1000",))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything runs in a directory of the test."""
    monkeypatch.chdir(tmp_path)


def configured(*preload: str, **environ: str) -> Spawner:
    spawner = Spawner.prestart()
    spawner.configure({**os.environ, **environ}, os.getcwd(), list(preload))
    return spawner


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with configured() as started:
        yield started


def order(spawner: Spawner, target: Any, rank: int = 0, **options: Any) -> int:
    options = {"cwd": os.getcwd(), "env": {}} | options
    return spawner.spawn(rank, target, **options)


def started(spawner: Spawner, target: Any, **options: Any) -> tuple[int, int]:
    """Start a worker: its key and its process id."""
    key = order(spawner, target, **options)
    return key, told(spawner, Started)[0].pid


def run(spawner: Spawner, *targets: Any, **options: Any) -> list[int]:
    """Run workers to their ends, each with files of its own; their exit codes."""
    for rank, target in enumerate(targets):
        files = {"stdout": f"out.{rank}", "stderr": f"err.{rank}"}
        files = {stream: os.path.abspath(name) for stream, name in files.items()}
        order(spawner, target, rank, **files, **options)
    ends = told(spawner, Exited, StartFailed, count=len(targets))
    assert not [end for end in ends if isinstance(end, StartFailed)]
    return [end.exitcode for end in sorted(ends, key=lambda end: end.local_rank)]


def out(rank: int = 0) -> str:
    return Path(f"out.{rank}").read_text()


def script(text: str, *argv: str, name: str = "s.py") -> Script:
    Path(name).write_text(text)
    return Script(os.path.abspath(name), argv)


def wait_gone(*pids: int) -> None:
    until(lambda: all(map(gone, pids)), f"the end of {pids}")


def pid_in(name: str) -> int:
    return int(until(lambda: text_of(Path(name)), name))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_script_sees_what_python_u_shows_it(spawner: Spawner, fresh: bool) -> None:
    text = (
        "import json, os, signal, sys\n"
        "out = dict(argv=sys.argv, name=__name__, file=__file__, path=sys.path,\n"
        "    spec=str(__spec__), command=sys.orig_argv[-3:],\n"
        "    main=sys.modules['__main__'].__dict__ is globals(), cwd=os.getcwd(),\n"
        "    stdin=sys.stdin.read(), unbuffered=sys.stdout.write_through,\n"
        "    sid=os.getsid(0) == os.getpid(), mask=len(signal.pthread_sigmask(0, ())),\n"
        "    term=str(signal.getsignal(signal.SIGTERM)),\n"
        "    pipe=str(signal.getsignal(signal.SIGPIPE)),\n"
        "    int=signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print(json.dumps(out))\n"
    )
    target = script(text, "a b", "--x=1", name="show me.py")
    assert run(spawner, target, fresh=fresh) == [0]
    plain = subprocess.run(
        [sys.executable, "-u", target.path, *target.argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        start_new_session=True,
    )
    assert json.loads(out()) == json.loads(plain.stdout)


@pytest.mark.parametrize("flags", [(), ("-P",), ("-I", "-X", "mine=1", "-W", "error")])
def test_a_script_runs_with_the_flags_of_the_launchers_interpreter(flags: tuple[str, ...]) -> None:
    show = script("import sys; print(sys.path[0], sys.flags, sys._xoptions)")
    launcher = script(
        f"import os, sys\nsys.path.append({str(Path(lllaunch.__file__).parent.parent)!r})\n"
        "from lllaunch.linux.process import wait_readable\n"
        "from lllaunch.spawner.client import Spawner\n"
        "from lllaunch.spawner.protocol import Exited, Script\n"
        "with Spawner.prestart() as spawner:\n"
        "    spawner.configure(os.environ, os.getcwd())\n"
        f"    spawner.spawn(0, Script({show.path!r}), cwd='/', env={{}},\n"
        "        stdout=os.path.abspath('log'))\n"
        "    while not any(isinstance(fact, Exited) for fact in spawner.dispatch()):\n"
        "        wait_readable(spawner, 240)\n",
        name="launcher.py",
    )
    subprocess.run([sys.executable, *flags, launcher.path], check=True, timeout=WAIT)
    plain = subprocess.run(
        [sys.executable, *flags, "-u", show.path], capture_output=True, text=True, check=True
    )
    assert Path("log").read_text() == plain.stdout


def test_a_module_runs_as_python_m(spawner: Spawner) -> None:
    Path("pkg").mkdir()
    Path("pkg/__init__.py").touch()
    Path("pkg/__main__.py").write_text(
        "import sys\nfrom . import side\nprint(__package__, __spec__.name, sys.argv[1:], side.X)\n"
    )
    Path("pkg/side.py").write_text("X = 7\n")
    assert run(spawner, Module("pkg", ("z",))) == [0]
    assert out() == "pkg pkg.__main__ ['z'] 7\n"


_FULL_DISK = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"
_ENDS = {
    "exit without a status": "raise SystemExit",
    "a status": "import sys; sys.exit(7)",
    "a text": "import sys; sys.exit('no')",
    "an exception": "raise ValueError('x')",
    "no Python": "1/",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "an end at once": "import os; os._exit(3)",
    "a hook that fails, standard error on a full disk": (
        _FULL_DISK + "import sys\ndef hook(*what): sys.stderr.write('mine')\n"
        "sys.excepthook = hook\nraise ValueError('this failed')\n"
    ),
    "an exception, standard error on a full disk": _FULL_DISK + "raise ValueError('this failed')\n",
    "a hook that exits": (
        "import sys\ndef hook(*what): sys.exit(5)\nsys.excepthook = hook\n1 / 0\n"
    ),
    "text for a closed standard error": "import sys; sys.stderr.close(); sys.exit('no')\n",
    "standard output that cannot be flushed": (
        "import sys; sys.stdout = open('/dev/full', 'w'); print('x')\n"
    ),
    "atexit functions and threads that raise": (
        "import atexit, sys, threading\natexit.register(lambda: sys.exit(4))\n"
        "atexit.register(lambda: 1 / 0)\nthreading.Thread(target=lambda: 1 / 0).start()\n"
    ),
    "a proxy of what is gone": (
        "import json, weakref\nclass A: pass\na = A()\njson.cache = weakref.proxy(a)\ndel a\n"
    ),
    "lazy objects": (
        "import importlib.util, os, sys\nopen('lazily.py', 'w').write('import os; os._exit(9)')\n"
        "sys.path.insert(0, os.getcwd())\nspec = importlib.util.find_spec('lazily')\n"
        "loader = spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "module = sys.modules['lazily'] = importlib.util.module_from_spec(spec)\n"
        "loader.exec_module(module)\n"
        "class Lazy:\n    def __getattribute__(self, name): os._exit(8)\n"
        "import json; json.lazy = Lazy()\n"
    ),
}


def test_a_worker_ends_as_the_interpreter_would_whatever_its_end_meets(spawner: Spawner) -> None:
    scripts = [script(text, name=f"s{i}.py") for i, text in enumerate(_ENDS.values())]
    statuses = run(spawner, *scripts, env={"TORCHELASTIC_ERROR_FILE": "/no/such/error.json"})
    plain = [
        subprocess.run([sys.executable, "-u", each.path], capture_output=True, check=False)
        for each in scripts
    ]
    expected = [done.returncode for done in plain]
    assert dict(zip(_ENDS, statuses, strict=True)) == dict(zip(_ENDS, expected, strict=True))
    for rank, done in enumerate(plain[:5]):
        said = Path(f"err.{rank}").read_text()
        assert said.endswith(done.stderr.decode())
        # a traceback starts at the user's code
        assert "lllaunch" not in said


def test_the_place_of_sys_exit_is_left_beside_the_error_file(spawner: Spawner) -> None:
    text = (
        "import argparse, os, sys\n"
        "def check_data():\n    sys.exit(3)\n"
        "def main():\n    argparse.ArgumentParser().parse_args()\n"
        "main() if sys.argv[1:] else check_data() if os.environ['HOW'] == 'bad' else sys.exit()\n"
    )
    path = script(text).path
    for how, argv, call in (
        ("bad", (), CalledExit(3, "3", path, 3, "check_data")),
        # the user's line, not the parser's
        ("argument", ("--what",), CalledExit(2, "2", path, 5, "main")),
        ("good", (), None),
    ):
        Path(how).mkdir()
        error_file = os.path.abspath(f"{how}/error.json")
        run(spawner, Script(path, argv), env={"TORCHELASTIC_ERROR_FILE": error_file, "HOW": how})
        assert read_exit_call(error_file, 0 if call is None else call.exitcode) == call


def test_nothing_that_a_script_leaves_to_the_interpreters_end_is_lost(spawner: Spawner) -> None:
    text = (
        "import atexit, ctypes, pickle, threading, time, zipfile\n"
        "f = open('never_closed', 'w'); f.write('kept')\n"
        "b = open('binary', 'wb'); b.write(b'kept')\n"
        "z = zipfile.ZipFile('a.zip', 'w'); z.writestr('x', 'y')\n"
        "class A: pass\n"
        "atexit.register(lambda: open('atexit', 'wb').write(pickle.dumps(A())))\n"
        "def late():\n    time.sleep(0.2); open('thread', 'w').write('joined')\n"
        "threading.Thread(target=late).start()\n"
        "class D:\n    def __del__(self, w=open): w('del', 'w').write('finalised')\n"
        "d = D()\n"
        "ctypes.CDLL(None).printf(b'from C')\n"
    )
    assert run(spawner, script(text)) == [0]
    names = ("never_closed", "binary", "thread", "del", "out.0")
    kept = [Path(name).read_text() for name in names]
    assert kept == ["kept", "kept", "joined", "finalised", "from C"]
    assert b"__main__" in Path("atexit").read_bytes()
    assert zipfile.ZipFile("a.zip").read("x") == b"y"


@pytest.mark.parametrize(
    ("program", "options", "path", "reason"),
    [
        ("no-such-program", {}, "no-such-program", "No such file or directory"),
        ("./plain.txt", {}, "./plain.txt", "Permission denied"),
        ("true", {"cwd": "/no/dir"}, "/no/dir", "No such file or directory"),
        ("true", {"stdout": "/no/dir/log"}, "/no/dir/log", "No such file or directory"),
    ],
)
def test_what_cannot_start_is_told_with_its_path(
    spawner: Spawner, program: str, options: dict[str, str], path: str, reason: str
) -> None:
    Path("plain.txt").write_text("no program")
    order(spawner, Program(program), **options)
    (failed,) = told(spawner, Exited, StartFailed)
    assert (failed.path, failed.reason) == (path, reason)


# glibc's posix_spawn leaves its two internal signals ignored; no program can set or send them.
GLIBC_INTERNAL = 1 << 31 | 1 << 32


def test_programs_start_with_default_signals_and_no_stdin(spawner: Spawner) -> None:
    shell = "cat; grep -E '^Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd"
    assert run(spawner, Program("sh", ("-c", shell))) == [0]
    lines = out().split()
    assert lines[:3] == ["SigBlk:", "0" * 16, "SigIgn:"]
    assert int(lines[3], 16) & ~GLIBC_INTERNAL == 0
    # ls has one more, its own listing.
    assert lines[4:] == ["0", "1", "2", "3"]


def test_output_is_appended_so_that_dev_stdout_does_not_truncate(spawner: Spawner) -> None:
    run(spawner, Program("sh", ("-c", "echo one; echo two > /proc/self/fd/1; echo three")))
    assert "\0" not in out()
    assert out().endswith("three\n")


def test_signals_reach_the_whole_process_group(spawner: Spawner) -> None:
    key, _ = started(spawner, Program("sh", ("-c", "sleep 1000 & echo $! > pid; wait")))
    sleeper = pid_in("pid")
    spawner.signal([key], signal.SIGTERM)
    (end,) = told(spawner, Exited)
    assert end.exitcode == -signal.SIGTERM
    wait_gone(sleeper)


def test_a_signal_that_comes_while_a_worker_starts_is_not_lost(spawner: Spawner) -> None:
    key = order(spawner, script("import time; time.sleep(1000)"))
    spawner.signal([key], signal.SIGTERM)
    (end,) = told(spawner, Exited)
    assert end.exitcode == -signal.SIGTERM


DAEMON = (
    "import os, signal, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "        open('daemon.tmp', 'w').write(str(os.getpid()))\n"
    "        os.rename('daemon.tmp', 'daemon')\n"
    "        time.sleep(1000)\n"
    "    os._exit(0)\n"
    "while not os.path.exists('daemon'): time.sleep(0.01)\n"
)


def test_a_leftover_that_ends_by_itself_is_not_killed(spawner: Spawner) -> None:
    run(spawner, Program("sh", ("-c", "setsid sh -c 'sleep 0.2; echo clean > clean' & exit 0")))
    spawner.clean_up()
    told(spawner, OrphansGone)
    assert Path("clean").read_text() == "clean\n"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_the_end_of_the_spawner_ends_workers_and_adopted_grandchildren(
    spawner: Spawner, fresh: bool, how: str
) -> None:
    _, worker = started(spawner, script(DAEMON + "time.sleep(1000)\n"), fresh=fresh)
    daemon = pid_in("daemon")
    if how == "closed":
        spawner.close()
    else:
        os.kill(spawner.pid, signal.SIGKILL)
        assert told(spawner, SpawnerGone)[0].status == -signal.SIGKILL
    wait_gone(worker, daemon)


def test_a_stopped_spawner_does_not_keep_signals_from_workers(spawner: Spawner) -> None:
    key, worker = started(spawner, ENDLESS)
    os.kill(spawner.pid, signal.SIGSTOP)
    try:
        spawner.signal([key], signal.SIGTERM)

        def ended() -> bool:
            wait_readable(spawner, 0.1)
            spawner.dispatch()
            return gone(worker)

        until(ended, "the end of the worker")
    finally:
        os.kill(spawner.pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_spawner_that_preloads_is_simply_killed(how: str) -> None:
    Path("endless.py").write_text("import time\nopen('began', 'w').write('x')\ntime.sleep(1000)\n")
    with configured("endless") as spawner:
        order(spawner, Program("true"))
        until(lambda: text_of(Path("began")), "the import")
        pid = spawner.pid
        if how == "signal":
            spawner.signal([1], signal.SIGTERM)
        else:
            spawner.kill([1])
        told(spawner, SpawnerGone)
        wait_gone(pid)


def test_another_interpreter_is_started_when_its_variables_change() -> None:
    with Spawner.prestart() as spawner:
        first = spawner.pid
        spawner.configure({**os.environ, "PYTHONHASHSEED": "3"}, os.getcwd())
        assert spawner.pid != first
        wait_gone(first)
        target = script("import sys; print(sys.flags.hash_randomization, hash('x'))")
        run(spawner, target, target)
    assert out(0) == out(1)
    assert out().startswith("1 ")


_DRAW = (
    "import json, random, sys\n"
    "import numpy, torch\n"
    "assert not torch.cuda.is_initialized()\n"
    # what CUDA's generators will be seeded with when it is initialised
    "seeds = [call[0].__closure__ for call in torch.cuda._lazy_seed_tracker.get_calls() if call]\n"
    "cuda = [cell.cell_contents for cells in seeds for cell in cells]\n"
    "print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item(), *cuda]))\n"
)


def test_no_random_number_comes_twice_in_ranks_and_attempts() -> None:
    # One that is seeded in the process that is forked, as by a module that is preloaded.
    Path("seeding.py").write_text("import torch; torch.manual_seed(0)\n")
    target = script(_DRAW)
    with configured("numpy", "torch", "seeding") as spawner:
        for _ in range(3):
            assert run(spawner, target, target) == [0, 0]
    # the files are appended to
    drawn = [json.loads(line) for rank in range(2) for line in out(rank).splitlines()]
    assert {len(numbers) for numbers in drawn} == {4}
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 6, drawn


def test_a_worker_computes_after_a_fork_from_openmp() -> None:
    text = "import torch\nx = torch.ones(800, 800, requires_grad=True)\n(x @ x).sum().backward()\n"
    Path("warm.py").write_text(text)
    with configured("torch", "warm", OMP_NUM_THREADS="2") as spawner:
        target = script(text + "print(int(x.grad[0, 0]))\n")
        assert run(spawner, target, target) == [0, 0]
    assert [out(0), out(1)] == ["1600\n", "1600\n"]


def test_check_function_tells_what_is_wrong_before_anything_starts(spawner: Spawner) -> None:
    Path("user_mod.py").write_text("def f(a, b=1): pass\n\nX = 3\n")

    def check(qualname: str, *args: object, module: str = "user_mod", **kwargs: object) -> str:
        call = pickle.dumps((args, kwargs))
        target = Function(module, qualname, call)
        return spawner.check_function(target, env={}, cwd=os.getcwd())

    assert check("f", 1) == ""
    assert check("f", 1, b=2) == ""
    assert "missing a required argument: 'a'" in check("f")
    assert "unexpected keyword argument 'c'" in check("f", 1, c=3)
    assert "has no attribute 'g'" in check("g")
    assert "cannot be called" in check("X")
    assert "No module named 'no_such_mod'" in check("f", module="no_such_mod")


def test_a_check_that_is_given_up_keeps_nothing_from_starting_and_its_verdict_is_nobodys(
    spawner: Spawner,
) -> None:
    Path("slow.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists('go'): time.sleep(0.01)\ndef main(a): pass\n"
    )
    Path("fine.py").write_text("def main(): pass\n")

    def check(module: str, seconds: float | None = None) -> str:
        call = pickle.dumps(((), {}))
        target, where = Function(module, "main", call), os.getcwd()
        return spawner.check_function(target, env={}, cwd=where, seconds=seconds)

    assert check("slow", 2.0) == ""
    assert run(spawner, Program("true")) == [0]
    if Path("pid").exists():
        wait_gone(pid_in("pid"))
    Path("go").touch()
    verdict = check("slow")
    assert "missing a required argument" in verdict
    # most often given up just before the verdict comes
    assert check("slow", 0.01) in ("", verdict)
    assert check("fine") == ""


# Leaves a grandchild without a mark and without a session of a worker.
ESCAPER = (
    "import os, subprocess, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execve('/bin/sh', ['sh', '-c', 'echo $$ > d; mv d daemon; exec sleep 1000'], {})\n"
    "    os._exit(0)\n"
    "while not os.path.exists('daemon'): time.sleep(0.01)\n"
    "time.sleep(1000)\n"
)


@pytest.fixture
def without_cgroup(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    """A spawner where cgroups are not delegated."""
    monkeypatch.setattr(Cgroup, "create", lambda _: None)
    with Spawner() as started:
        started.configure(os.environ, os.getcwd())
        yield started


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_daemon_with_no_mark_and_no_session_of_a_worker_dies_with_the_spawner(
    without_cgroup: Spawner, how: str
) -> None:
    spawner = without_cgroup
    key, worker = started(spawner, script(ESCAPER))
    escaped = pid_in("daemon")
    if how == "killed":
        os.kill(spawner.pid, signal.SIGKILL)
    else:
        os.kill(spawner.pid, signal.SIGSTOP)
        spawner.kill([key])
    (died,) = told(spawner, SpawnerGone)
    assert gone(escaped)
    wait_gone(worker)
    # what ended it is told, so that nobody else is blamed
    assert died.sent == (() if how == "killed" else (signal.SIGKILL,))


def can_make_cgroups() -> bool:
    group = Cgroup.create("probe")
    if group is not None:
        group.remove()
    return group is not None


@pytest.mark.skipif(not can_make_cgroups(), reason="no cgroup can be made here")
def test_a_grandchild_without_mark_and_session_dies_with_the_cgroup(spawner: Spawner) -> None:
    started(spawner, script(ESCAPER))
    escaped = pid_in("daemon")
    os.kill(spawner.pid, signal.SIGKILL)
    told(spawner, SpawnerGone)
    wait_gone(escaped)


def test_a_child_of_the_launchers_own_that_nothing_distinguishes_survives_the_spawners_death(
    without_cgroup: Spawner,
) -> None:
    own = subprocess.Popen(["/bin/sleep", "1000"], env={}, start_new_session=True)
    try:
        started(without_cgroup, ENDLESS)
        os.kill(without_cgroup.pid, signal.SIGKILL)
        told(without_cgroup, SpawnerGone)
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_a_spawner_that_is_ending_is_replaced(without_cgroup: Spawner) -> None:
    spawner = without_cgroup
    assert run(spawner, Program("true")) == [0]
    first = spawner.pid
    os.kill(first, signal.SIGKILL)
    wait_gone(first)
    # its end is noticed, and what it may have left behind is ended
    assert [type(event) for event in spawner.dispatch()] == [SpawnerGone]
    assert not spawner.ready
    spawner.configure(os.environ, os.getcwd())
    assert spawner.pid != first
    assert run(spawner, Program("true")) == [0]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGTSTP])
def test_a_signal_to_a_spawner_that_just_starts_ends_nothing(signum: signal.Signals) -> None:
    with Spawner.prestart() as spawner:
        os.kill(spawner.pid, signum)
        spawner.configure(os.environ, os.getcwd())
        blocked = Program("grep", ("SigBlk:\t0000000000000000", "/proc/self/status"))
        assert run(spawner, blocked) == [0]


def test_a_thread_that_blocks_sigchld_hears_of_ends_all_the_same() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with configured() as spawner:
            assert run(spawner, Program("true")) == [0]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_the_end_of_an_abandoned_worker_is_not_told(spawner: Spawner) -> None:
    shell = "while [ ! -e go ]; do sleep 0.01; done; exit 9"
    key, abandoned = started(spawner, Program("sh", ("-c", shell)))
    spawner.abandon([key])
    # the next run's worker of the same rank
    _, later = started(spawner, ENDLESS)
    Path("go").touch()
    wait_gone(abandoned)
    order(spawner, Program("true"), rank=1)
    assert [end.local_rank for end in told(spawner, Exited)] == [1]
    assert not gone(later)


def test_a_sweep_that_was_given_up_neither_ends_what_comes_later_nor_is_told(
    spawner: Spawner,
) -> None:
    run(spawner, script(DAEMON))
    stuck = pid_in("daemon")
    spawner.clean_up()
    spawner.abandon([])
    os.rename("daemon", "stuck")
    # the next run on the same spawner
    run(spawner, script(DAEMON))
    later = pid_in("daemon")
    # more than the time that a sweep lets what is left settle
    while wait_readable(spawner, 3 * SETTLE_SECONDS):
        assert not [fact for fact in spawner.dispatch() if isinstance(fact, OrphansGone)]
    assert not gone(stuck)
    assert not gone(later)
    spawner.clean_up()
    (swept,) = told(spawner, OrphansGone)
    assert {each.pid for each in swept.orphans} == {stuck, later}
    wait_gone(stuck, later)
