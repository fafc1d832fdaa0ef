"""The spawner with real workers, through its client."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import WAIT

import lllaunch
from lllaunch.events import (
    Exited,
    OrphansGone,
    PreloadBroken,
    SpawnerEvent,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.linux import proc
from lllaunch.linux.cgroup import Cgroup
from lllaunch.linux.process import wait_readable
from lllaunch.run.excerpts import read_exit_call
from lllaunch.run.records import ExitCall
from lllaunch.spawner.child import ChildDefaults, start
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.orphans import SETTLE_SECONDS
from lllaunch.spawner.protocol import Function, Module, Program, Script, SpawnRequest


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner.prestart() as started:
        started.configure(os.environ, os.getcwd())
        yield started


def facts_until(spawner: Spawner, done: Callable[[list[SpawnerEvent]], bool]) -> list[SpawnerEvent]:
    found: list[SpawnerEvent] = []
    deadline = time.monotonic() + WAIT
    while not done(found):
        left = deadline - time.monotonic()
        assert left > 0, f"only these facts came: {found}"
        wait_readable(spawner, left)
        found += spawner.dispatch()
    return found


def facts_until_quiet(spawner: Spawner, seconds: float) -> list[SpawnerEvent]:
    """Return what is told until nothing has been for some time."""
    found: list[SpawnerEvent] = []
    while wait_readable(spawner, seconds):
        found += spawner.dispatch()
    return found


def ends(facts: list[SpawnerEvent]) -> list[Exited | StartFailed]:
    return [fact for fact in facts if isinstance(fact, (Exited, StartFailed))]


def run(spawner: Spawner, *targets: object, **options: object) -> list[Exited | StartFailed]:
    options = {"cwd": os.getcwd(), "env": {}} | options
    # Two unbuffered writers of one file interleave within a line.
    log = str(options.pop("logs", ""))
    for rank, target in enumerate(targets):
        files = {"stdout": f"{log}.{rank}"} if log else {}
        spawner.spawn(rank, target, **(options | files))  # type: ignore[arg-type]
    found = facts_until(spawner, lambda facts: len(ends(facts)) == len(targets))
    return sorted(ends(found), key=lambda end: end.local_rank)


def both(log: Path) -> list[str]:
    return [Path(f"{log}.{rank}").read_text() for rank in range(2)]


def script(path: Path, text: str) -> Script:
    path.write_text(text)
    return Script(str(path))


def started_pids(spawner: Spawner, count: int) -> list[int]:
    def pids(facts: list[SpawnerEvent]) -> list[int]:
        return [fact.pid for fact in facts if isinstance(fact, Started)]

    return pids(facts_until(spawner, lambda facts: len(pids(facts)) == count))


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + WAIT
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text()


def gone(pid: int) -> bool:
    facts = proc.facts(pid)
    return facts is None or facts.state in "ZX"


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} lives: {proc.command(pid)}"
        time.sleep(0.01)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_script_sees_what_python_u_shows_it(
    spawner: Spawner, tmp_path: Path, fresh: bool
) -> None:
    text = (
        "import json, os, signal, sys\n"
        "out = dict(argv=sys.argv, name=__name__, file=__file__, path=sys.path,\n"
        "    spec=str(__spec__), command=sys.orig_argv[-3:],\n"
        "    shown=open('/proc/self/cmdline').read().rstrip('\\0').split('\\0')[-3:],\n"
        "    main=sys.modules['__main__'].__dict__ is globals(), cwd=os.getcwd(),\n"
        "    stdin=sys.stdin.read(), unbuffered=sys.stdout.write_through,\n"
        "    sid=os.getsid(0) == os.getpid(), mask=len(signal.pthread_sigmask(0, ())),\n"
        "    term=str(signal.getsignal(signal.SIGTERM)),\n"
        "    pipe=str(signal.getsignal(signal.SIGPIPE)),\n"
        "    int=signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print(json.dumps(out))\n"
    )
    target = script(tmp_path / "show me.py", text)
    target = Script(target.path, ("a b", "--x=1"))
    log = tmp_path / "out.log"
    (end,) = run(spawner, target, cwd=str(tmp_path), stdout=str(log), fresh=fresh)
    assert isinstance(end, Exited)
    assert end.exitcode == 0
    ours = json.loads(log.read_text())
    plain = subprocess.run(
        [sys.executable, "-u", target.path, *target.argv],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        start_new_session=True,
    )
    assert ours == json.loads(plain.stdout)


@pytest.mark.parametrize("flags", [(), ("-P",), ("-I", "-X", "mine=1", "-W", "error")])
def test_a_script_runs_with_the_flags_of_the_launchers_interpreter(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    if "-P" in flags and sys.version_info < (3, 11):
        pytest.skip("the flag is of Python 3.11")
    show = script(tmp_path / "show.py", "import sys; print(sys.path[0], sys.flags, sys._xoptions)")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        f"import os, sys\nsys.path.append({str(Path(lllaunch.__file__).parent.parent)!r})\n"
        "from lllaunch.linux.process import wait_readable\n"
        "from lllaunch.spawner.client import Spawner\n"
        "from lllaunch.spawner.protocol import Exited\n"
        "from lllaunch.spawner.protocol import Script\n"
        "with Spawner.prestart() as spawner:\n"
        "    spawner.configure(os.environ, os.getcwd())\n"
        f"    spawner.spawn(0, Script({show.path!r}), cwd='/', env={{}}, stdout='{tmp_path}/log')\n"
        "    while not any(isinstance(fact, Exited) for fact in spawner.dispatch()):\n"
        "        wait_readable(spawner, 240)\n"
    )
    subprocess.run([sys.executable, *flags, str(launcher)], check=True, timeout=WAIT)
    plain = subprocess.run(
        [sys.executable, *flags, "-u", show.path], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "log").read_text() == plain.stdout


def test_a_module_runs_as_python_m(spawner: Spawner, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nfrom . import side\nprint(__package__, __spec__.name, sys.argv[1:], side.X)\n"
    )
    (package / "side.py").write_text("X = 7\n")
    log = tmp_path / "out.log"
    (end,) = run(spawner, Module("pkg", ("z",)), cwd=str(tmp_path), stdout=str(log))
    assert end.exitcode == 0  # type: ignore[union-attr]
    assert log.read_text() == "pkg pkg.__main__ ['z'] 7\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no')", 1),
        ("raise ValueError('x')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os._exit(3)", 3),
        ("1/", 1),
    ],
)
def test_exit_statuses_are_those_of_the_interpreter(
    spawner: Spawner, tmp_path: Path, text: str, code: int
) -> None:
    err = tmp_path / "err.log"
    (end,) = run(spawner, script(tmp_path / "s.py", text), stderr=str(err))
    assert isinstance(end, Exited)
    assert end.exitcode == code
    if code == 1:
        # The traceback starts at the user's code, as under the interpreter.
        assert "lllaunch" not in err.read_text()
        assert err.read_text()


_FULL_DISK = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"
_ODD_ENDS = {
    "a hook that fails, standard error on a full disk": (
        _FULL_DISK + "import sys\ndef hook(*what): sys.stderr.write('mine')\n"
        "sys.excepthook = hook\nraise ValueError('this failed')\n"
    ),
    "an exception, standard error on a full disk": _FULL_DISK + "raise ValueError('this failed')\n",
    "a hook that raises": (
        "import sys\ndef hook(*what): raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n"
    ),
    "a hook that exits": (
        "import sys\ndef hook(*what): sys.exit(5)\nsys.excepthook = hook\n1 / 0\n"
    ),
    "a module whose name is no text": "exec('1 / 0', {'__name__': None})\n",
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
    "what warns when it is looked at": (
        "import json, warnings\nwarnings.simplefilter('error')\nclass Old:\n"
        "    @property\n    def __class__(self): warnings.warn('old', FutureWarning)\n"
        "json.old = Old()\n"
    ),
}


def test_a_worker_ends_as_the_interpreter_would_whatever_its_end_meets(
    spawner: Spawner, tmp_path: Path
) -> None:
    scripts = [script(tmp_path / f"s{i}.py", text) for i, text in enumerate(_ODD_ENDS.values())]
    env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "no directory" / "error.json")}
    ends = run(spawner, *scripts, cwd=str(tmp_path), env=env)
    statuses = [end.exitcode if isinstance(end, Exited) else None for end in ends]
    plain = [
        subprocess.run(
            [sys.executable, "-u", each.path], cwd=tmp_path, capture_output=True, check=False
        ).returncode
        for each in scripts
    ]
    assert dict(zip(_ODD_ENDS, statuses, strict=True)) == dict(zip(_ODD_ENDS, plain, strict=True))


def test_a_child_that_fails_before_it_is_a_worker_ends_and_says_why(tmp_path: Path) -> None:
    order = SpawnRequest(key=1, rank=0, target=Program("true"), cwd=str(tmp_path))
    around = ChildDefaults(os.getpid(), frozenset(), (1, 1), (), (), "", ())
    parent = os.getpid()
    try:
        pid, report = start(order, around, ["no descriptor"])  # type: ignore[list-item]
    finally:
        if os.getpid() != parent:
            os._exit(99)
    with os.fdopen(report) as file:
        assert "TypeError" in file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 127


def test_the_place_of_sys_exit_is_left_beside_the_error_file(
    spawner: Spawner, tmp_path: Path
) -> None:
    text = (
        "import argparse, os, sys\n"
        "def check_data():\n    sys.exit(3)\n"
        "def main():\n    argparse.ArgumentParser().parse_args()\n"
        "main() if sys.argv[1:] else check_data() if os.environ['HOW'] == 'bad' else sys.exit()\n"
    )
    target = script(tmp_path / "s.py", text)
    called = {}
    for how, argv in (("bad", ()), ("argument", ("--what",)), ("good", ())):
        directory = tmp_path / how
        directory.mkdir()
        env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json"), "HOW": how}
        run(spawner, Script(target.path, argv), env=env)
        called[how] = read_exit_call(str(directory / "error.json"))
    path = target.path
    assert called["bad"] == ExitCall(3, path, 3, "check_data")
    # the user's line, not the parser's
    assert called["argument"] == ExitCall(2, path, 5, "main")
    assert called["good"] is None


def test_nothing_that_a_script_leaves_to_the_interpreters_end_is_lost(
    spawner: Spawner, tmp_path: Path
) -> None:
    text = (
        "import atexit, ctypes, threading, time, zipfile\n"
        "f = open('never_closed.txt', 'w'); f.write('kept')\n"
        "b = open('binary.bin', 'wb'); b.write(b'kept')\n"
        "z = zipfile.ZipFile('a.zip', 'w'); z.writestr('x', 'y')\n"
        "atexit.register(lambda: open('atexit.txt', 'w').write('ran'))\n"
        "def late():\n    time.sleep(0.2); open('thread.txt', 'w').write('joined')\n"
        "threading.Thread(target=late).start()\n"
        "class D:\n    def __del__(self, w=open): w('del.txt', 'w').write('finalised')\n"
        "d = D()\n"
        "ctypes.CDLL(None).printf(b'from C')\n"
    )
    log = tmp_path / "out.log"
    (end,) = run(spawner, script(tmp_path / "s.py", text), cwd=str(tmp_path), stdout=str(log))
    assert end.exitcode == 0  # type: ignore[union-attr]
    assert (tmp_path / "never_closed.txt").read_text() == "kept"
    assert (tmp_path / "binary.bin").read_bytes() == b"kept"
    assert (tmp_path / "atexit.txt").read_text() == "ran"
    assert (tmp_path / "thread.txt").read_text() == "joined"
    assert (tmp_path / "del.txt").read_text() == "finalised"
    assert log.read_text() == "from C"
    import zipfile

    assert zipfile.ZipFile(tmp_path / "a.zip").read("x") == b"y"


def test_an_object_of_main_can_be_pickled_at_exit(spawner: Spawner, tmp_path: Path) -> None:
    text = (
        "import atexit, pickle\n"
        "class A: pass\n"
        "atexit.register(lambda: open('p', 'wb').write(pickle.dumps(A())))\n"
    )
    (end,) = run(spawner, script(tmp_path / "s.py", text), cwd=str(tmp_path))
    assert end.exitcode == 0  # type: ignore[union-attr]
    assert b"__main__" in (tmp_path / "p").read_bytes()


def test_what_cannot_start_is_told_with_its_path(spawner: Spawner, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    ends = run(spawner, Program("no-such-program"), Program(str(plain)))
    assert isinstance(ends[0], StartFailed)
    assert ends[0].path == "no-such-program"
    assert ends[0].reason == "No such file or directory"
    assert isinstance(ends[1], StartFailed)
    assert ends[1].path == str(plain)
    assert ends[1].reason == "Permission denied"
    (nowhere,) = run(spawner, Program("true"), cwd="/no/such/dir")
    assert isinstance(nowhere, StartFailed)
    assert nowhere.path == "/no/such/dir"
    (unwritable,) = run(spawner, Program("true"), stdout="/no/such/dir/log")
    assert isinstance(unwritable, StartFailed)
    assert unwritable.path == "/no/such/dir/log"


# glibc's posix_spawn leaves its two internal signals ignored; no program can set or send them.
GLIBC_INTERNAL = 1 << 31 | 1 << 32


def test_programs_start_with_default_signals_and_no_stdin(spawner: Spawner, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    shell = "cat; grep -E '^Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd"
    (end,) = run(spawner, Program("sh", ("-c", shell)), stdout=str(log))
    assert end.exitcode == 0  # type: ignore[union-attr]
    lines = log.read_text().split()
    assert lines[:3] == ["SigBlk:", "0" * 16, "SigIgn:"]
    assert int(lines[3], 16) & ~GLIBC_INTERNAL == 0
    # ls has one more, its own listing.
    assert lines[4:] == ["0", "1", "2", "3"]


def test_output_is_appended_so_that_dev_stdout_does_not_truncate(
    spawner: Spawner, tmp_path: Path
) -> None:
    log = tmp_path / "out.log"
    shell = "echo one; echo two > /proc/self/fd/1; echo three"
    run(spawner, Program("sh", ("-c", shell)), stdout=str(log))
    assert "\0" not in log.read_text()
    assert log.read_text().endswith("three\n")


def test_signals_reach_the_whole_process_group(spawner: Spawner, tmp_path: Path) -> None:
    key = spawner.spawn(
        0,
        Program("sh", ("-c", f"sleep 100 & echo $! > {tmp_path}/pid; wait")),
        cwd=str(tmp_path),
        env={},
    )
    started_pids(spawner, 1)
    sleeper = int(wait_for(tmp_path / "pid"))
    spawner.signal([key], signal.SIGTERM)
    facts = facts_until(spawner, lambda facts: bool(ends(facts)))
    assert ends(facts)[0].exitcode == -signal.SIGTERM  # type: ignore[union-attr]
    wait_gone(sleeper)


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


def test_a_sweep_ends_a_daemonised_grandchild_and_says_so(spawner: Spawner, tmp_path: Path) -> None:
    run(spawner, script(tmp_path / "s.py", DAEMON), cwd=str(tmp_path))
    daemon = int(wait_for(tmp_path / "daemon"))
    assert not gone(daemon)
    spawner.clean_up()
    facts = facts_until(spawner, lambda facts: any(isinstance(f, OrphansGone) for f in facts))
    # The process between the worker and the daemon may be seen as well, while it ends.
    leftovers = next(fact for fact in facts if isinstance(fact, OrphansGone)).orphans
    assert [left.killed for left in leftovers if left.pid == daemon] == [True]
    wait_gone(daemon)


def test_a_leftover_that_ends_by_itself_is_not_killed(spawner: Spawner, tmp_path: Path) -> None:
    shell = f"setsid sh -c 'sleep 0.2; echo clean > {tmp_path}/clean' & exit 0"
    run(spawner, Program("sh", ("-c", shell)))
    spawner.clean_up()
    facts_until(spawner, lambda facts: any(isinstance(f, OrphansGone) for f in facts))
    assert (tmp_path / "clean").read_text() == "clean\n"


def test_close_ends_all(spawner: Spawner, tmp_path: Path) -> None:
    target = script(tmp_path / "s.py", DAEMON + "time.sleep(1000)\n")
    spawner.spawn(0, target, cwd=str(tmp_path), env={})
    (worker,) = started_pids(spawner, 1)
    daemon = int(wait_for(tmp_path / "daemon"))
    spawner.close()
    wait_gone(worker)
    wait_gone(daemon)


@pytest.mark.parametrize("fresh", [False, True])
def test_death_of_the_spawner_ends_workers_and_adopted_grandchildren(
    spawner: Spawner, tmp_path: Path, fresh: bool
) -> None:
    target = script(tmp_path / "s.py", DAEMON + "time.sleep(1000)\n")
    spawner.spawn(0, target, cwd=str(tmp_path), env={}, fresh=fresh)
    (worker,) = started_pids(spawner, 1)
    daemon = int(wait_for(tmp_path / "daemon"))
    os.kill(spawner.pid, signal.SIGKILL)
    facts = facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
    assert next(fact for fact in facts if isinstance(fact, SpawnerGone)).status == -signal.SIGKILL
    wait_gone(worker)
    wait_gone(daemon)


def test_a_stopped_spawner_does_not_keep_signals_from_workers(
    spawner: Spawner, tmp_path: Path
) -> None:
    key = spawner.spawn(0, Program("sleep", ("1000",)), cwd=str(tmp_path), env={})
    (worker,) = started_pids(spawner, 1)
    os.kill(spawner.pid, signal.SIGSTOP)
    try:
        spawner.signal([key], signal.SIGTERM)
        deadline = time.monotonic() + WAIT
        while not gone(worker):
            assert time.monotonic() < deadline
            wait_readable(spawner, 0.1)
            spawner.dispatch()
    finally:
        os.kill(spawner.pid, signal.SIGCONT)


def test_a_stopped_spawner_is_killed_when_workers_must_be(spawner: Spawner, tmp_path: Path) -> None:
    key = spawner.spawn(0, Program("sleep", ("1000",)), cwd=str(tmp_path), env={})
    (worker,) = started_pids(spawner, 1)
    os.kill(spawner.pid, signal.SIGSTOP)
    spawner.kill([key])
    facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
    wait_gone(worker)


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_spawner_that_preloads_is_simply_killed(tmp_path: Path, how: str) -> None:
    (tmp_path / "endless.py").write_text(
        "import time\nopen('started', 'w').write('x')\ntime.sleep(1000)\n"
    )
    with Spawner.prestart() as spawner:
        spawner.configure(os.environ, str(tmp_path), ["endless"])
        spawner.spawn(0, Program("true"), cwd=str(tmp_path), env={})
        wait_for(tmp_path / "started")
        pid = spawner.pid
        if how == "signal":
            spawner.signal([1], signal.SIGTERM)
        else:
            spawner.kill([1])
        facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
        wait_gone(pid)


def test_a_preload_that_fails_is_told_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_mod.py").write_text("1 / 0\n")
    with Spawner.prestart() as spawner:
        spawner.configure(os.environ, str(tmp_path), ["broken_mod"])
        facts = facts_until(spawner, bool)
    (fact,) = facts
    assert isinstance(fact, PreloadBroken)
    assert fact.module == "broken_mod"
    assert fact.reason == "ZeroDivisionError: division by zero"
    assert "broken_mod.py" in fact.traceback


def test_preloaded_modules_are_shared_and_variables_act_before_them(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import os\nPID = os.getpid()\nOMP = os.environ['OMP_X']\n")
    log = tmp_path / "out.log"
    with Spawner.prestart() as spawner:
        spawner.configure({**os.environ, "OMP_X": "5"}, str(tmp_path), ["heavy"])
        text = "import heavy, os; print(heavy.PID == os.getppid(), heavy.OMP)\n"
        target = script(tmp_path / "s.py", text)
        run(spawner, target, stdout=str(log), cwd=str(tmp_path))
    assert log.read_text() == "True 5\n"


def test_another_interpreter_is_started_when_its_variables_change(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    with Spawner.prestart() as spawner:
        first = spawner.pid
        spawner.configure({**os.environ, "PYTHONHASHSEED": "3"}, str(tmp_path))
        assert spawner.pid != first
        wait_gone(first)
        text = "import sys; print(sys.flags.hash_randomization, hash('x'))"
        target = script(tmp_path / "s.py", text)
        run(spawner, target, target, logs=log)
    one, two = both(log)
    assert one == two
    assert one.startswith("1 ")


_DRAW = (
    "import json, random, sys\n"
    "import numpy, torch\n"
    "assert not torch.cuda.is_initialized()\n"
    # what CUDA's generators will be seeded with when it is initialised
    "seeds = [call[0].__closure__ for call in torch.cuda._lazy_seed_tracker.get_calls() if call]\n"
    "cuda = [cell.cell_contents for cells in seeds for cell in cells]\n"
    "print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item(), *cuda]))\n"
)


def test_no_random_number_comes_twice_in_ranks_and_attempts(tmp_path: Path) -> None:
    # One that is seeded in the process that is forked, as by a module that is preloaded.
    (tmp_path / "seeding.py").write_text("import torch; torch.manual_seed(0)\n")
    target = script(tmp_path / "draw.py", _DRAW)
    logs = [tmp_path / f"{attempt}.log" for attempt in range(3)]
    with Spawner.prestart() as spawner:
        spawner.configure(os.environ, str(tmp_path), ["numpy", "torch", "seeding"])
        for log in logs:
            ends = run(spawner, target, target, logs=log)
            assert [end.exitcode for end in ends] == [0, 0]  # type: ignore[union-attr]
    drawn = [json.loads(text) for log in logs for text in both(log)]
    assert {len(numbers) for numbers in drawn} == {4}
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 6, drawn


def test_a_worker_computes_after_a_fork_from_openmp(tmp_path: Path) -> None:
    (tmp_path / "warm.py").write_text(
        "import torch\nx = torch.ones(800, 800, requires_grad=True)\n(x @ x).sum().backward()\n"
    )
    log = tmp_path / "out.log"
    with Spawner.prestart() as spawner:
        environ = {**os.environ, "OMP_NUM_THREADS": "2"}
        spawner.configure(environ, str(tmp_path), ["torch", "warm"])
        text = (
            "import torch\nx = torch.ones(800, 800, requires_grad=True)\n"
            "(x @ x).sum().backward()\nprint(int(x.grad[0, 0]))\n"
        )
        target = script(tmp_path / "s.py", text)
        ends = run(spawner, target, target, logs=log)
    assert [end.exitcode for end in ends] == [0, 0]  # type: ignore[union-attr]
    assert both(log) == ["1600\n", "1600\n"]


def test_check_function_tells_what_is_wrong_before_anything_starts(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "user_mod.py").write_text("def f(a, b=1): pass\n\nX = 3\n")

    def check(qualname: str, *args: object, module: str = "user_mod", **kwargs: object) -> str:
        call = pickle.dumps((args, kwargs))
        return spawner.check_function(module, qualname, call, env={}, cwd=str(tmp_path))

    assert check("f", 1) == ""
    assert check("f", 1, b=2) == ""
    assert "missing a required argument: 'a'" in check("f")
    assert "unexpected keyword argument 'c'" in check("f", 1, c=3)
    assert "has no attribute 'g'" in check("g")
    assert "cannot be called" in check("X")
    assert "No module named 'no_such_mod'" in check("f", module="no_such_mod")


def test_a_function_is_called_and_its_value_is_left_in_the_attempt(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "user_fn.py").write_text("def f(a, b): return {'sum': a + b}\n")
    target = Function("user_fn", "f", pickle.dumps(((1,), {"b": 2})))
    env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    (end,) = run(spawner, target, cwd=str(tmp_path), env=env)
    assert end.exitcode == 0  # type: ignore[union-attr]
    assert pickle.loads((tmp_path / "return.pkl").read_bytes()) == {"sum": 3}
    assert (tmp_path / "return.json").read_text() == '{"sum": 3}'


def test_two_hundred_workers(spawner: Spawner, tmp_path: Path) -> None:
    target = script(tmp_path / "s.py", "import os; print(os.environ['R'])")
    for rank in range(200):
        log = str(tmp_path / f"{rank}.log")
        spawner.spawn(rank, target, cwd=str(tmp_path), env={"R": str(rank)}, stdout=log)
    facts = facts_until(spawner, lambda facts: len(ends(facts)) == 200)
    assert all(end.exitcode == 0 for end in ends(facts))  # type: ignore[union-attr]
    assert all((tmp_path / f"{rank}.log").read_text() == f"{rank}\n" for rank in range(200))


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
    without_cgroup: Spawner, tmp_path: Path, how: str
) -> None:
    spawner = without_cgroup
    target = script(tmp_path / "s.py", ESCAPER)
    key = spawner.spawn(0, target, cwd=str(tmp_path), env={})
    started_pids(spawner, 1)
    escaped = int(wait_for(tmp_path / "daemon"))
    if how == "killed":
        os.kill(spawner.pid, signal.SIGKILL)
    else:
        os.kill(spawner.pid, signal.SIGSTOP)
        spawner.kill([key])
    facts = facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
    assert gone(escaped)
    # what ended it is told, so that nobody else is blamed
    died = next(fact for fact in facts if isinstance(fact, SpawnerGone))
    assert died.sent == (() if how == "killed" else (signal.SIGKILL,))


def test_a_child_of_the_launchers_own_that_nothing_distinguishes_survives_the_spawners_death(
    without_cgroup: Spawner, tmp_path: Path
) -> None:
    spawner = without_cgroup
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        finally:
            os._exit(99)
    try:
        spawner.spawn(0, Program("sleep", ("1000",)), cwd=str(tmp_path), env={})
        started_pids(spawner, 1)
        os.kill(spawner.pid, signal.SIGKILL)
        facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
        assert not gone(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_launcher_acts_on_other_things_while_a_spawner_ends(
    without_cgroup: Spawner, tmp_path: Path
) -> None:
    spawner = without_cgroup
    spawner.spawn(0, Program("sleep", ("1000",)), cwd=str(tmp_path), env={})
    started_pids(spawner, 1)
    # Its connection closes, and it cannot end: as one that waits for a disk would.
    os.kill(spawner.pid, signal.SIGSTOP)
    assert spawner._channel is not None
    spawner._channel._sock.shutdown(socket.SHUT_RDWR)
    assert spawner.dispatch() == []
    assert spawner.dispatch() == []
    os.kill(spawner.pid, signal.SIGKILL)
    facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))


def test_a_spawner_that_is_ending_is_replaced(without_cgroup: Spawner, tmp_path: Path) -> None:
    spawner = without_cgroup
    facts_until(spawner, lambda facts: spawner.ready)
    first = spawner.pid
    os.kill(first, signal.SIGKILL)
    wait_gone(first)
    # its end is noticed, and what it may have left behind is looked for
    assert spawner.dispatch() == []
    assert not spawner.ready
    spawner.configure(os.environ, os.getcwd())
    assert spawner.pid != first
    (end,) = run(spawner, Program("true"))
    assert isinstance(end, Exited)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGTSTP])
def test_a_signal_to_a_spawner_that_just_starts_ends_nothing(signum: signal.Signals) -> None:
    with Spawner.prestart() as spawner:
        os.kill(spawner.pid, signum)
        spawner.configure(os.environ, os.getcwd())
        (end,) = run(spawner, Program("grep", ("SigBlk:\t0000000000000000", "/proc/self/status")))
    assert isinstance(end, Exited)
    assert end.exitcode == 0


def test_a_thread_that_blocks_sigchld_hears_of_ends_all_the_same() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with Spawner() as spawner:
            spawner.configure(os.environ, os.getcwd())
            (end,) = run(spawner, Program("true"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert isinstance(end, Exited)


def check(spawner: Spawner, directory: Path, module: str, seconds: float | None) -> str:
    call = pickle.dumps(((), {}))
    where = str(directory)
    return spawner.check_function(module, "main", call, env={}, cwd=where, seconds=seconds)


def test_a_verdict_that_comes_too_late_is_not_taken_for_the_next_ones(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('begun', 'w').write('x')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\ndef main(a): pass\n"
    )
    (tmp_path / "fine.py").write_text("def main(): pass\n")
    assert check(spawner, tmp_path, "slow", 0.01) == ""
    (tmp_path / "go").write_text("")
    # both verdicts, or what is left of the first, are under way now
    run(spawner, Program("sleep", ("0.2",)))
    assert check(spawner, tmp_path, "fine", None) == ""
    assert "missing a required argument" in check(spawner, tmp_path, "slow", None)


def test_a_check_that_is_given_up_keeps_no_worker_from_starting(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    )
    assert check(spawner, tmp_path, "hangs", 2.0) == ""
    (end,) = run(spawner, Program("true"))
    assert isinstance(end, Exited)
    if (tmp_path / "pid").exists():
        wait_gone(int((tmp_path / "pid").read_text()))


def test_the_end_of_an_abandoned_worker_is_not_told(spawner: Spawner, tmp_path: Path) -> None:
    shell = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 9"
    key = spawner.spawn(0, Program("sh", ("-c", shell)), cwd=str(tmp_path), env={})
    (abandoned,) = started_pids(spawner, 1)
    spawner.abandon([key])
    # the next run's worker of the same rank
    spawner.spawn(0, Program("sleep", ("1000",)), cwd=str(tmp_path), env={})
    (later,) = started_pids(spawner, 1)
    (tmp_path / "go").write_text("")
    wait_gone(abandoned)
    spawner.spawn(1, Program("true"), cwd=str(tmp_path), env={})
    facts = facts_until(spawner, lambda facts: bool(ends(facts)))
    assert [end.local_rank for end in ends(facts)] == [1]
    assert not gone(later)


def test_a_sweep_that_was_given_up_neither_ends_what_comes_later_nor_is_told(
    spawner: Spawner, tmp_path: Path
) -> None:
    run(spawner, script(tmp_path / "s.py", DAEMON), cwd=str(tmp_path))
    stuck = int(wait_for(tmp_path / "daemon"))
    spawner.clean_up()
    spawner.abandon([])
    os.rename(tmp_path / "daemon", tmp_path / "stuck")
    # the next run on the same spawner
    run(spawner, script(tmp_path / "s.py", DAEMON), cwd=str(tmp_path))
    later = int(wait_for(tmp_path / "daemon"))
    # more than the time that a sweep lets what is left settle
    facts = facts_until_quiet(spawner, 3 * SETTLE_SECONDS)
    assert not [fact for fact in facts if isinstance(fact, OrphansGone)]
    assert not gone(stuck)
    assert not gone(later)
    spawner.clean_up()
    facts = facts_until(spawner, lambda facts: any(isinstance(f, OrphansGone) for f in facts))
    (swept,) = [fact for fact in facts if isinstance(fact, OrphansGone)]
    assert later in [left.pid for left in swept.orphans]
    assert stuck not in [left.pid for left in swept.orphans]
    spawner.close()
    wait_gone(stuck)


def test_what_belongs_to_another_user_does_not_end_the_spawner(tmp_path: Path) -> None:
    """It is started without the right to signal other users' processes."""
    program = tmp_path / "launcher.py"
    program.write_text(OTHER_USER)
    command = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", sys.executable]
    # not into a pipe, which what is left behind would hold open
    with open(tmp_path / "out", "w") as out:
        subprocess.run([*command, str(program), str(tmp_path)], stdout=out, stderr=out, check=False)
    try:
        assert (tmp_path / "out").read_text().split() == ["sweeping", "Exited", "0"]
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


# A worker leaves a process behind that has changed its user; then another worker runs.
OTHER_USER = r"""
import os, sys, time
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.client import Spawner
from lllaunch.events import Exited
from lllaunch.spawner.protocol import Program
os.chdir(sys.argv[1])
LEAVE = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid(); os.setuid(65534)\n"
    "    os.write(9, str(os.getpid()).encode())\n"
    "    time.sleep(1000)\n"
    "while not os.path.getsize('pid'): time.sleep(0.01)\n"
)
def run(spawner, *command):
    spawner.spawn(0, Program(command[0], command[1:]), cwd=os.getcwd(), env={})
    while True:
        wait_readable(spawner)
        for fact in spawner.dispatch():
            if not isinstance(fact, Exited): continue
            return fact
with Spawner() as spawner:
    spawner.configure(os.environ, os.getcwd())
    run(spawner, "sh", "-c", 'exec "$0" -c "$1" 9> pid', sys.executable, LEAVE)
    spawner.clean_up()
    print("sweeping")
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        wait_readable(spawner, 0.1)
        for fact in spawner.dispatch(): print(fact)
    spawner.abandon([])
    fact = run(spawner, "true")
    print(type(fact).__name__, fact.exitcode)
    sys.stdout.flush()
    # nothing here may end what it left: that is for the test to do
    os._exit(0)
"""


def can_make_cgroups() -> bool:
    group = Cgroup.create("probe")
    if group is not None:
        group.remove()
    return group is not None


@pytest.mark.skipif(not can_make_cgroups(), reason="no cgroup can be made here")
def test_a_grandchild_without_mark_and_session_dies_with_the_cgroup(
    spawner: Spawner, tmp_path: Path
) -> None:
    spawner.spawn(0, script(tmp_path / "s.py", ESCAPER), cwd=str(tmp_path), env={})
    started_pids(spawner, 1)
    escaped = int(wait_for(tmp_path / "daemon"))
    os.kill(spawner.pid, signal.SIGKILL)
    facts_until(spawner, lambda facts: any(isinstance(f, SpawnerGone) for f in facts))
    wait_gone(escaped)
