"""How workers and runs end, and what of their surroundings workers must not touch."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import SLOW_SPAWNER, WAIT, Launcher, gone, launch, run_script, text_of, until

from lllaunch.linux import proc

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
    until(lambda: all(map(gone, pids)), "the end of the check")


def test_a_full_pipe_on_the_console_does_not_keep_a_signal_away(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print('y' * 1_000_000)\nprint('done', flush=True)\n")
    read, write = os.pipe()
    try:
        launcher = Launcher(tmp_path, {"entrypoint": "s.py", "tee": "all"}, stdout=write)
        log = tmp_path / "run" / "attempt_0" / "0" / "stdout.log"
        until(lambda: "done" in text_of(log), "the worker")
        launcher.signal(signal.SIGTERM)
        assert launcher.finish().code in (0, 128 + signal.SIGTERM)
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


def test_a_gpu_without_memory_is_a_lack_of_memory(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "class OutOfMemoryError(RuntimeError): pass\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a'\n"
        " ' total capacity of 1.00 GiB of which 0.50 GiB is free. Process 7 has more')\n"
    )
    node = {"entrypoint": "s.py", "max_restarts": 1, "restart": {"on": ["oom"]}, "tee": "none"}
    done = launch(tmp_path, node)
    assert done.code == 3
    assert len(done.result["attempts"]) == 2
    assert done.result["root_cause"]["cause"]["type"] == "DeviceOutOfMemory"
    assert (
        "ran out of device memory: CUDA out of memory. Tried to allocate 2.00 GiB."
        " GPU 0 has a total capacity of 1.00 GiB of which 0.50 GiB is free\n"
    ) in done.err


# The end of a run: what is written is true, and signals do not keep it from being written


def test_a_run_has_succeeded_though_the_spawner_dies_while_leftovers_are_ended(
    tmp_path: Path,
) -> None:
    node = {"entrypoint": "sh", "args": ["-c", "sleep 100 & exit 0"], "nproc": 2}
    # nothing ends the leftovers before it
    (tmp_path / "sitecustomize.py").write_text(SLOW_SPAWNER)
    environ = {"PYTHONPATH": str(tmp_path), "LET_DIE": str(tmp_path / "never")}
    launcher = Launcher(tmp_path, node, environ=environ)
    events = tmp_path / "run" / "events.jsonl"
    until(lambda: "CleanUp" in text_of(events), "the end of all workers")
    os.kill(launcher.spawner(), signal.SIGKILL)
    done = launcher.finish()
    assert "SpawnerGone" in text_of(events)
    assert (done.code, done.result["state"]) == (0, "succeeded"), done.err
    assert done.result["root_cause"] is None


@pytest.mark.parametrize("signals", [["SIGTERM"], ["SIGTERM", "SIGINT"]])
def test_a_keyboard_interrupt_ends_the_run_as_the_signal_does(
    tmp_path: Path, signals: list[str]
) -> None:
    node = {"entrypoint": "sleep", "args": ["1000"], "signals": signals, "grace_period": "20s"}
    launcher = Launcher(tmp_path, node)
    until(lambda: '"Started"' in text_of(tmp_path / "run" / "events.jsonl"), "the worker")
    launcher.signal(signal.SIGINT)
    done = launcher.finish()
    assert done.code == 130
    assert (done.result["state"], done.result["exit_code"]) == ("signalled", 130)
    assert "Traceback" not in done.err


@pytest.mark.parametrize("limit", [10, 22, 34])
def test_too_few_descriptors_are_named_with_their_limit_and_the_result_is_true(
    tmp_path: Path, limit: int
) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    node = {"entrypoint": "echo", "args": ["x"], "nproc": 4, "tee": "all"}
    launcher = Launcher(tmp_path, node, preexec_fn=few)
    done = launcher.finish()
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert done.code in {0, 1}
    if done.code:
        assert f"this process may have {limit} open (ulimit -n)" in done.err
    result = tmp_path / "run" / "result.json"
    if result.exists():
        assert done.result["exit_code"] == done.code
        started = {event["local_rank"] for event in done.events() if event["type"] == "Started"}
        for attempt in done.result["attempts"]:
            for worker in attempt["workers"]:
                assert (worker["fate"] != "not_started") == (worker["local_rank"] in started)


# Preloaded: lets this spawner end nothing, as where the kernel does not let go of a process.
HELPLESS = """
import sys
from lllaunch.spawner import orphans, server

server._GIVE_UP_SECONDS = 0.5
server._BRANCH_SECONDS = 0.1
orphans.signal_process = lambda known, signum: False
open("helpless", "w").close()
"""


def test_an_orphaned_spawner_gives_up_on_what_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "helpless.py").write_text(HELPLESS)
    (tmp_path / "work.py").write_text(
        "import os, time\n"
        "with open('pid', 'w') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(1000)\n"
    )
    node = {"entrypoint": "work.py", "tee": "none", "preload": ["helpless"]}
    launcher = Launcher(tmp_path, node)
    until(lambda: text_of(tmp_path / "pid").endswith("\n"), "the worker")
    assert (tmp_path / "helpless").exists()
    worker, spawner = int(text_of(tmp_path / "pid")), launcher.spawner()
    launcher.process.kill()
    launcher.process.communicate()
    until(lambda: gone(spawner), "the end of the spawner")
    # by its parent-death signal
    until(lambda: gone(worker), "the end of the worker")


def states(pids: list[int]) -> set[str]:
    found = {pid: proc.facts(pid) for pid in pids}
    return {facts.state for facts in found.values() if facts is not None}


def test_ctrl_z_stops_the_workers_too_and_no_time_passes_until_they_go_on(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "with open(f'pids{os.environ[\"RANK\"]}', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}\\n')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "child.kill()\n"
    )
    node = {"entrypoint": "work.py", "nproc": 2, "tee": "none"}
    launcher = Launcher(tmp_path, node)
    files = [tmp_path / f"pids{rank}" for rank in range(2)]
    until(lambda: all(text_of(file).endswith("\n") for file in files), "the workers")
    pids = [launcher.pid, *(int(pid) for file in files for pid in file.read_text().split())]
    for _ in range(2):
        launcher.signal(signal.SIGTSTP)
        until(lambda: states(pids) == {"T"}, "all to be stopped")
        launcher.signal(signal.SIGCONT)
        until(lambda: "T" not in states(pids), "all to go on")
    (tmp_path / "go").touch()
    done = launcher.finish()
    assert (done.code, done.result["state"]) == (0, "succeeded"), done.err
    assert not [event for event in done.events() if event["type"] == "SignalReceived"]
