"""How workers and runs end, and what of their surroundings workers must not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, Launcher, launch, run_script, text_of, until

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
        timeout=WAIT,
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


def test_safe_path_keeps_pythonpath(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "mylib1.py").write_text("X = 5\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')\n")
    (tmp_path / "s.py").write_text("import mylib1; print(mylib1.X)\n")
    environ = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(lib)}
    done = launch(tmp_path, {"entrypoint": "s.py", "start_method": "spawn"}, environ=environ)
    assert (done.code, done.log(0)) == (0, b"5\n"), done.err


def test_a_helper_of_a_preload_is_nobodys_leftover(tmp_path: Path) -> None:
    (tmp_path / "helping.py").write_text(
        "import subprocess\nP = subprocess.Popen(['sleep', '1000'])\n"
    )
    (tmp_path / "s.py").write_text("import sys; sys.exit(3)\n")
    node = {"entrypoint": "s.py", "preload": ["helping"], "max_restarts": 1, "tee": "none"}
    done = launch(tmp_path, node)
    assert done.code == 3
    assert [attempt["leftovers"] for attempt in done.result["attempts"]] == [[], []]


# The end of a run: what is written is true, and signals do not keep it from being written


def test_a_keyboard_interrupt_ends_the_run_as_the_signal_does(tmp_path: Path) -> None:
    node = {"entrypoint": "sleep", "args": ["1000"], "signals": ["SIGTERM"], "grace_period": "20s"}
    launcher = Launcher(tmp_path, node)
    until(lambda: '"Started"' in text_of(tmp_path / "run" / "events.jsonl"), "the worker")
    launcher.signal(signal.SIGINT)
    done = launcher.finish()
    assert done.code == 130
    assert (done.result["state"], done.result["exit_code"]) == ("signalled", 130)
    assert "Traceback" not in done.err
