"""How workers end, and what of their surroundings they must not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import Launcher, launch, run_script, text_of, until

FORK_CALLER = """
import atexit, multiprocessing, os, sys, tempfile, time
from lllaunch.multiprocessing import start_processes

def work():
    return os.getpid()

def sleep():
    time.sleep(100)

if __name__ == "__main__":
    directory = tempfile.TemporaryDirectory()
    file = open(sys.argv[1] + "/caller.txt", "w"); file.write("buffered")
    atexit.register(lambda: print("atexit in", "caller" if os.getpid() == me else "worker"))
    me = os.getpid()
    child = multiprocessing.get_context("fork").Process(target=sleep, daemon=True); child.start()
    ctx = start_processes("t", work, {0: (), 1: ()}, {0: {}, 1: {}}, log_dir=sys.argv[1],
                          start_method="fork")
    result = ctx.wait()
    print(sorted(result.return_values) == [0, 1], os.path.exists(directory.name), child.is_alive())
    child.kill(); child.join()
    file.close()
    print(open(sys.argv[1] + "/caller.txt").read())
"""


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_forked_workers_leave_the_callers_things_alone(tmp_path: Path) -> None:
    done = run(FORK_CALLER, str(tmp_path))
    assert done.stdout == "True True True\nbuffered\natexit in caller\n", done.stderr


def test_workers_forked_in_a_thread_outlive_the_thread(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\n"
        "from lllaunch.multiprocessing import start_processes\n"
        "def f(): time.sleep(0.5); return 1\n"
        "made = []\n"
        "def start(): made.append(start_processes('t', f, {0: ()}, {0: {}},"
        " log_dir=sys.argv[1], start_method='fork'))\n"
        "t = threading.Thread(target=start); t.start(); t.join()\n"
        "print(made[0].wait().return_values)\n"
    )
    done = run(code, str(tmp_path))
    assert done.stdout == "{0: 1}\n", done.stderr


def test_a_large_argument_has_left_when_start_returns(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(
        "import sys\nfrom lllaunch.multiprocessing import start_processes\n"
        "import multiprocessing\n"
        "def f(data, queue): queue.put(len(data))\n"
        "if __name__ == '__main__':\n"
        "    queue = multiprocessing.get_context('spawn').Queue()\n"
        "    ctx = start_processes('t', f, {0: (bytes(5 << 20), queue)}, {0: {}},"
        " log_dir=sys.argv[1])\n"
        "    print(queue.get(timeout=50))\n"
        "    ctx.wait()\n"
    )
    done = run_script(path, tmp_path / "logs")
    assert done.stdout == f"{5 << 20}\n", done.stderr


def test_forked_workers_do_not_hold_each_others_pipes(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(
        "import multiprocessing, sys\nfrom lllaunch.multiprocessing import start_processes\n"
        "def f(end, send):\n"
        "    if send:\n        end.send('hi'); end.close(); return None\n"
        "    got = []\n"
        "    try:\n        while True: got.append(end.recv())\n"
        "    except EOFError:\n        return got\n"
        "if __name__ == '__main__':\n"
        "    r, s = multiprocessing.get_context('forkserver').Pipe(False)\n"
        "    ctx = start_processes('t', f, {0: (r, 0), 1: (s, 1)}, {0: {}, 1: {}},"
        " log_dir=sys.argv[1], start_method='forkserver')\n"
        "    r.close(); s.close()\n"
        "    result = ctx.wait(30); print(result and result.return_values); ctx.close()\n"
    )
    done = run_script(path, tmp_path / "logs")
    assert done.stdout == "{0: ['hi'], 1: None}\n", done.stderr


def test_ctrl_c_loses_no_unflushed_file(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import atexit, time\nf = open('kept.txt', 'w'); f.write('unflushed')\n"
        "atexit.register(lambda: open('atexit.txt', 'w').write('ran'))\n"
        "print('ready')\ntime.sleep(1000)\n"
    )
    launcher = Launcher(tmp_path, {"entrypoint": "s.py"})
    log = tmp_path / "run" / "attempt_0" / "0" / "stdout.log"
    until(lambda: text_of(log), "the worker")
    launcher.signal(signal.SIGINT)
    done = launcher.finish()
    assert done.code == 130
    assert (tmp_path / "kept.txt").read_text() == "unflushed"
    assert (tmp_path / "atexit.txt").read_text() == "ran"
    assert done.result["attempts"][0]["workers"][0]["exitcode"] == -signal.SIGINT


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # Anything may stand in sys.modules, and answer for any attribute.
        (
            (
                "import sys, pathlib\n"
                "class Lazy:\n    def __getattr__(self, name): return pathlib.Path('x')\n"
                "sys.modules['lazy'] = Lazy()\n"
            ),
            0,
        ),
        ("import sys\nf = open('users.txt', 'w')\nsys.stderr.close()\nsys.exit('bye')\n", 1),
        (
            (
                "import threading, time\ndef g(): pass\n"
                "def loop():\n    while True: g(); time.sleep(0)\n"
                "threading.Thread(target=loop, daemon=True).start()\ntime.sleep(0.05)\n"
            ),
            0,
        ),
        ("getattr(__builtins__, 'print')('x')\n__annotations__\n", 0),
    ],
    ids=["odd module", "closed stderr", "daemon thread", "builtins"],
)
def test_odd_scripts_end_as_under_the_interpreter(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "s.py").write_text(text)
    done = launch(tmp_path, {"entrypoint": "s.py", "tee": "none"})
    assert done.code == (3 if code else 0), done.err
    assert done.result["attempts"][0]["workers"][0]["exitcode"] == code
    assert done.log(0, "stderr") == b""
    assert text_of(tmp_path / "users.txt") == ""


def test_faulthandler_works_in_forked_workers(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import ctypes; ctypes.string_at(0)\n")
    environ = {"PYTHONFAULTHANDLER": "1"}
    done = launch(tmp_path, {"entrypoint": "s.py", "tee": "none"}, environ=environ)
    assert done.code == 3
    assert b"Fatal Python error: Segmentation fault" in done.log(0, "stderr")


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_closed_standard_streams_cost_no_output(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for fd in closed:
            os.close(fd)

    (tmp_path / "s.py").write_text("print('hello')\n")
    options: dict[str, Any] = {"stdout": None, "stderr": None, "preexec_fn": close}
    done = launch(tmp_path, {"entrypoint": "s.py", "nproc": 2}, **options)
    assert done.code == 0
    assert [done.log(rank) for rank in range(2)] == [b"hello\n"] * 2


def test_too_few_descriptors_are_a_clear_error(tmp_path: Path) -> None:
    import resource

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    (tmp_path / "s.py").write_text("import time; time.sleep(1000)\n")
    done = launch(tmp_path, {"entrypoint": "s.py", "nproc": 60, "tee": "none"}, preexec_fn=few)
    assert done.code == 3
    assert "this process may have 40 open (ulimit -n)" in done.err
    assert "internal error" not in done.err


def test_safe_path_keeps_pythonpath(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "mylib1.py").write_text("X = 5\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')\n")
    (tmp_path / "s.py").write_text("import mylib1; print(mylib1.X)\n")
    environ = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(lib)}
    done = launch(tmp_path, {"entrypoint": "s.py", "start_method": "spawn"}, environ=environ)
    assert (done.code, done.log(0)) == (0, b"5\n"), done.err


def test_the_soft_limit_of_open_files_is_the_launchers_in_every_worker(tmp_path: Path) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def low() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))

    (tmp_path / "s.py").write_text(
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    # The variable makes the spawner that was started early be replaced.
    node = {"entrypoint": "s.py", "env": {"PYTHONHASHSEED": "0"}}
    done = launch(tmp_path, node, preexec_fn=low)
    assert done.log(0) == b"512\n", done.err


def test_the_entrypoint_check_dies_with_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('importing', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
        "globals()['main'] = lambda: None\n"
    )
    launcher = Launcher(tmp_path, {"entrypoint": "slow:main"})
    until(lambda: text_of(tmp_path / "importing"), "the check")
    pids = [process.pid for process in launcher.below()]
    assert len(pids) == 2
    launcher.signal(signal.SIGKILL)
    launcher.finish()
    from support.launching import gone

    until(lambda: all(map(gone, pids)), "the end of the check")


def test_a_full_pipe_on_the_console_does_not_keep_a_signal_away(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print('y' * 1_000_000)\nprint('done', flush=True)\n")
    read, write = os.pipe()
    try:
        launcher = Launcher(tmp_path, {"entrypoint": "s.py", "tee": "all"}, stdout=write)
        log = tmp_path / "run" / "attempt_0" / "0" / "stdout.log"
        until(lambda: "done" in text_of(log), "the worker")
        launcher.signal(signal.SIGTERM)
        assert launcher.finish(30).code in (0, 128 + signal.SIGTERM)
    finally:
        os.close(read)
        os.close(write)


def test_a_helper_of_a_preload_is_nobodys_leftover(tmp_path: Path) -> None:
    (tmp_path / "helping.py").write_text(
        "import subprocess\nP = subprocess.Popen(['sleep', '1000'])\n"
    )
    (tmp_path / "s.py").write_text("import sys; sys.exit(3)\n")
    node = {"entrypoint": "s.py", "preload": ["helping"], "max_restarts": 1, "tee": "none"}
    done = launch(tmp_path, node)
    assert done.code == 3
    assert [attempt["leftovers"] for attempt in done.result["attempts"]] == [[], []]


def test_kill_reaches_workers_of_a_moment_ago() -> None:
    code = (
        "import os, time\nfrom lllaunch.linux.proc import children\n"
        "from lllaunch.linux.process import wait_readable\n"
        "from lllaunch.spawner.client import Spawner\n"
        "from lllaunch.spawner.protocol import Program\n"
        "for _ in range(10):\n"
        "    with Spawner.prestart() as s:\n"
        "        s.configure(os.environ, '/')\n"
        "        while not s.ready: wait_readable(s); s.dispatch()\n"
        "        keys = [s.spawn(r, Program('sleep', ('1000',)), cwd='/', env={})"
        " for r in range(12)]\n"
        "        s.kill(keys)\n"
        "        ended = 0\n"
        # a spawner that did not answer within a second has been killed, and all with it
        "        while ended < 12 and not s.dead:\n"
        "            assert wait_readable(s, 20), f'{12 - ended} live'\n"
        "            ended += sum(hasattr(f, 'exitcode') or hasattr(f, 'errno')"
        " for f in s.dispatch())\n"
        "    assert not children(os.getpid())\n"
        "print('all')\n"
    )
    done = run(code)
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize(("causes", "attempts"), [(["failure"], 1), (["oom"], 2)])
def test_a_gpu_without_memory_is_a_lack_of_memory(
    tmp_path: Path, causes: list[str], attempts: int
) -> None:
    (tmp_path / "s.py").write_text(
        "class OutOfMemoryError(RuntimeError): pass\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a'\n"
        " ' total capacity of 1.00 GiB of which 0.50 GiB is free. Process 7 has more')\n"
    )
    node = {"entrypoint": "s.py", "max_restarts": 1, "restart": {"on": causes}, "tee": "none"}
    done = launch(tmp_path, node)
    assert done.code == 3
    assert len(done.result["attempts"]) == attempts
    assert done.result["root_cause"]["cause"]["type"] == "DeviceOutOfMemory"
    assert (
        "ran out of device memory: CUDA out of memory. Tried to allocate 2.00 GiB."
        " GPU 0 has a total capacity of 1.00 GiB of which 0.50 GiB is free\n"
    ) in done.err
