"""What always holds: one test and more for each of the nine promises (docs/invariants.md)."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, Launcher, Project, gone, launch, text_of, until

from lllaunch.linux import proc

pexpect = pytest.importorskip("pexpect", reason="it is the person at the terminal")

# A worker that leaves a grandchild in a session of its own which ignores SIGTERM, then waits.
HOLDER = """
import os, signal, sys, time
rank = os.environ["RANK"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        with open(f"daemon{rank}.tmp", "w") as f: f.write(str(os.getpid()))
        os.rename(f"daemon{rank}.tmp", f"daemon{rank}")
        time.sleep(1000)
    os._exit(0)
while not os.path.exists(f"daemon{rank}"): time.sleep(0.01)
print("ready", flush=True)
END
"""


def holder(directory: Path, end: str = "time.sleep(1000)") -> dict[str, Any]:
    (directory / "holder.py").write_text(HOLDER.replace("END", end))
    return {"entrypoint": "holder.py", "nproc": 2, "redirects": "all", "tee": "none"}


def pids_of(launcher: Launcher) -> list[int]:
    """Everything below the launcher, once both grandchildren are there."""
    names = [launcher.directory / f"daemon{rank}" for rank in range(2)]
    until(lambda: all(text_of(name) for name in names), "the grandchildren")
    daemons = [int(name.read_text()) for name in names]
    return sorted({process.pid for process in launcher.below()} | set(daemons))


def all_gone(pids: list[int]) -> None:
    until(lambda: all(map(gone, pids)), f"the end of {[p for p in pids if not gone(p)]}")


# 1. Nothing outlives the launcher


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)"])
def test_1_nothing_outlives_success_or_failure(tmp_path: Path, end: str) -> None:
    done = launch(tmp_path, holder(tmp_path, end))
    assert done.code == (0 if end == "pass" else 3)
    all_gone([int((tmp_path / f"daemon{rank}").read_text()) for rank in range(2)])


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_1_nothing_outlives_sigkill_of_the_launcher(tmp_path: Path, start_method: str) -> None:
    launcher = Launcher(tmp_path, holder(tmp_path) | {"start_method": start_method})
    pids = pids_of(launcher)
    launcher.kill()
    all_gone(pids)


def test_1_nothing_outlives_sigkill_of_the_launcher_while_the_spawner_is_stopped(
    tmp_path: Path,
) -> None:
    launcher = Launcher(tmp_path, holder(tmp_path))
    pids = pids_of(launcher)
    os.kill(launcher.spawner(), signal.SIGSTOP)
    launcher.kill()
    try:
        all_gone(pids)
    finally:
        for pid in pids:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_1_nothing_outlives_sigkill_of_the_spawner(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, holder(tmp_path))
    pids = pids_of(launcher)
    spawner = launcher.spawner()
    os.kill(spawner, signal.SIGKILL)
    # The death of a spawner is retried once: the second one's workers find their files there.
    until((tmp_path / "run" / "attempt_1" / "1").exists, "the second attempt")
    second = until(lambda: [p for p in launcher.below() if p.ppid == launcher.pid], "a new spawner")
    all_gone([pid for pid in pids if pid != spawner])
    os.kill(second[0].pid, signal.SIGKILL)
    done = launcher.finish()
    assert done.code == 3
    assert "the process that forks workers" in done.err
    assert done.result["root_cause"]


@pytest.mark.parametrize("times", [1, 2])
def test_1_and_4_ctrl_c_once_and_twice_from_a_terminal(tmp_path: Path, times: int) -> None:
    end = (
        "signal.signal(signal.SIGINT, lambda *_: (open('got' + rank, 'a').write('x'),"
        " None if {} else sys.exit(0)))\n"
        "open('set' + rank, 'w').close()\n"
        "while True: time.sleep(0.1)"
    ).format("True" if times == 2 else "False")
    node = holder(tmp_path, end) | {"grace_period": "100s"}
    Project(tmp_path).experiment("test", json.dumps(node))
    command = ["-m", "lllaunch", "+exp=test", "hydra.run.dir=run"]
    terminal = pexpect.spawn(sys.executable, command, cwd=str(tmp_path), encoding="utf-8")
    names = [tmp_path / f"daemon{rank}" for rank in range(2)]
    until(lambda: all(text_of(name) for name in names), "the grandchildren")
    pids = [p.pid for p in proc.descendants(terminal.pid)] + [int(n.read_text()) for n in names]
    until(lambda: all((tmp_path / f"set{rank}").exists() for rank in range(2)), "their handlers")
    terminal.sendintr()
    until(lambda: all(text_of(tmp_path / f"got{rank}") for rank in range(2)), "the first signal")
    if times == 2:
        terminal.sendintr()
    terminal.expect(pexpect.EOF, timeout=WAIT)
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) in [(130, None), (None, signal.SIGINT)]
    # Each worker saw the first signal once: the terminal's own did not reach it.
    assert [text_of(tmp_path / f"got{rank}") for rank in range(2)] == ["x", "x"]
    all_gone(pids)


# 2. Nothing that is not ours is ever signalled


def test_2_a_process_group_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        done = launch(tmp_path, holder(tmp_path, "sys.exit(3)"))
        assert done.code == 3
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


# 3. Every byte is in its file; every teed line is shown whole, once, with one prefix

PIECES = r"""
import os, sys, time
out = sys.stdout.buffer
def put(data, pause=0.0):
    out.write(data); out.flush(); time.sleep(pause)
put(b"one piece\n")
put(b"in ", 0.05); put(b"two", 0.05); put(b" pieces\n")
put(b"\n")
put(b"\xff\xfe not UTF-8\n")
put(b"bar 1\rbar 2\rbar 3\n")
put(b"x" * 10_000_000 + b"\n")
put(bytes(range(256)) * 4 + b"\n")
put(b"no newline at the end")
"""


def test_3_bytes_in_files_and_lines_on_the_console(tmp_path: Path) -> None:
    (tmp_path / "pieces.py").write_text(PIECES)
    node = {
        "entrypoint": "pieces.py",
        "nproc": 12,
        "tee": {"11": "out"},
        "log_line_prefix": "<${worker:rank}> ",
    }
    with open(tmp_path / "console", "wb") as console:
        done = launch(tmp_path, node, stdout=console)
    assert done.code == 0, done.err
    expected = (
        b"one piece\nin two pieces\n\n\xff\xfe not UTF-8\nbar 1\rbar 2\rbar 3\n"
        + b"x" * 10_000_000
        + b"\n"
        + bytes(range(256)) * 4
        + b"\nno newline at the end"
    )
    for rank in range(12):
        assert done.log(rank) == expected
    shown = (tmp_path / "console").read_bytes()
    lines = [line for line in shown.split(b"\n") if line.startswith(b"<11> ")]
    assert lines[:4] == [
        b"<11> one piece",
        b"<11> in two pieces",
        b"<11> ",
        b"<11> \xff\xfe not UTF-8",
    ]
    assert lines[4].endswith(b"bar 3")
    assert b"bar 1" not in lines[4]
    assert lines[5] == b"<11> " + b"x" * 10_000_000
    assert lines[-1] == b"<11> no newline at the end"
    assert shown.endswith(b"\n")


# 4. First signal: forwarded, grace period, SIGKILL; second: SIGKILL now; handlers put back


STUBBORN = (
    "import os, signal, sys, time\n"
    "def got(n, f): open('got' + os.environ['RANK'], 'a').write(signal.Signals(n).name + ' ')\n"
    "for s in (1, 2, 3, 10, 12, 15): signal.signal(s, got)\n"
    "print('ready', flush=True)\n"
    "while True: time.sleep(0.05)\n"
)


def stubborn(tmp_path: Path, grace: str, **options: Any) -> Launcher:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    node = {"entrypoint": "stubborn.py", "nproc": 2, "grace_period": grace, "tee": "none"}
    # SIGQUIT ends a run only where the config lists it
    signals = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
    launcher = Launcher(tmp_path, {**node, "signals": signals}, **options)
    logs = [tmp_path / "run" / "attempt_0" / str(rank) / "stdout.log" for rank in range(2)]
    until(lambda: all("ready" in text_of(log) for log in logs), "both workers")
    return launcher


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_4_the_first_signal_is_forwarded_and_the_second_kills_now(
    tmp_path: Path, signum: signal.Signals
) -> None:
    launcher = stubborn(tmp_path, "1000s")
    pids = [process.pid for process in launcher.below()]
    launcher.signal(signum)
    got = [tmp_path / f"got{rank}" for rank in range(2)]
    until(lambda: [text_of(each) for each in got] == [f"{signum.name} "] * 2, "the first signal")
    launcher.signal(signum)
    done = launcher.finish()
    assert done.code == 128 + signum
    workers = done.result["attempts"][0]["workers"]
    assert [worker["signals_sent"] for worker in workers] == [[signum.name, "SIGKILL"]] * 2
    assert {worker["exitcode"] for worker in workers} == {-9}
    all_gone(pids)


def test_4_usr1_and_usr2_go_to_the_workers_and_the_run_goes_on_until_sigterm(
    tmp_path: Path,
) -> None:
    # as in `srun --pty bash`, where Slurm sends nothing
    launcher = stubborn(tmp_path, "0.5s", environ={"SLURM_STEP_ID": "0"})
    got = [tmp_path / f"got{rank}" for rank in range(2)]

    def arrived(count: int) -> bool:
        over = launcher.process.poll() is not None
        return over or [len(text_of(each).split()) for each in got] == [count] * 2

    for number, signum in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM), 1):
        launcher.signal(signum)
        until(lambda: arrived(number), signum.name)  # noqa: B023 - at once
    assert [text_of(each) for each in got] == ["SIGUSR1 SIGUSR2 SIGTERM "] * 2
    done = launcher.finish()
    assert done.code == 128 + signal.SIGTERM
    for said in ("SIGUSR2 received, passed on to the", "SIGTERM received, forwarded to 2"):
        assert f"{said} workers" in done.err
    assert len(done.result["attempts"]) == 1


def test_4_after_the_grace_period_comes_sigkill(tmp_path: Path) -> None:
    launcher = stubborn(tmp_path, "0.5s")
    launcher.signal(signal.SIGTERM)
    done = launcher.finish()
    assert done.code == 128 + signal.SIGTERM
    workers = done.result["attempts"][0]["workers"]
    assert [worker["signals_sent"] for worker in workers] == [["SIGTERM", "SIGKILL"]] * 2


# 5. The report names the root cause by time, and what became of every worker


def test_5_the_root_cause_is_the_first_failure_though_the_clock_is_set_back(tmp_path: Path) -> None:
    # as rank 1 sees it, between the two failures; it fails when rank 0 is gone
    (tmp_path / "s.py").write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('ready', 'w').close()\n"
        "    while not os.path.islink('failed'): time.sleep(0.001)\n"
        "    while os.path.exists('/proc/' + os.readlink('failed')): time.sleep(0.001)\n"
        "    real = time.time_ns\n"
        "    time.time_ns = lambda: real() - 1_500_000_000\n"
        "    raise RuntimeError('I was second')\n"
        "while not os.path.exists('ready'): time.sleep(0.001)\n"
        # what rank 1 says is later than the beginning of the attempt
        "time.sleep(2)\n"
        "os.symlink(str(os.getpid()), 'failed')\n"
        "raise ValueError('I was first')\n"
    )
    done = launch(tmp_path, {"entrypoint": "s.py", "nproc": 2, "tee": "none"})
    assert done.code == 3
    assert done.result["root_cause"]["rank"] == 0, done.err


# 6. Every wait has a bound or a wake-up; none polls


def test_6_an_idle_launcher_uses_no_cpu(tmp_path: Path) -> None:
    node = {"entrypoint": "sleep", "args": ["1000"], "nproc": 8, "tee": "all", "samples": False}
    launcher = Launcher(tmp_path, node)
    until(lambda: len(launcher.below()) == 9, "the workers")

    def switches() -> int:
        total = 0
        for pid in (launcher.pid, launcher.spawner()):
            for task in os.listdir(f"/proc/{pid}/task"):
                status = Path(f"/proc/{pid}/task/{task}/status").read_text()
                total += sum(
                    int(line.split()[1]) for line in status.splitlines() if "_ctxt_" in line
                )
        return total

    def idle() -> bool:
        before = switches()
        time.sleep(3.0)
        # a loop that polled, even once a second, would always be woken at least three times
        return switches() - before <= 1

    until(idle, "three seconds in which nothing wakes up")
    launcher.signal(signal.SIGTERM)
    launcher.finish()


# 7. All ranks get the same resolved config, composed once


def test_7_all_ranks_get_one_config(tmp_path: Path) -> None:
    node = {
        "entrypoint": "sh",
        "args": ["-c", "echo $0", "${now:%H-%M-%S-%f}"],
        "nproc": 3,
        "tee": "none",
    }
    done = launch(tmp_path, node)
    assert done.code == 0, done.err
    assert len({done.log(rank) for rank in range(3)}) == 1


# 8. A secret in env is never written to disk by us


def test_8_no_secret_is_written_or_shown(tmp_path: Path) -> None:
    secret = "sw0rdfish-0123456789"
    node = {
        "entrypoint": "sh",
        "args": ["-c", 'test "$WANDB_API_KEY" = "$EXPECTED" || exit 9; exit 3'],
        "env": {"WANDB_API_KEY": "${oc.env:MY_KEY}", "EXPECTED": "${oc.env:MY_KEY}"},
        "tee": "all",
    }
    done = launch(tmp_path, node, environ={"MY_KEY": secret, "HYDRA_FULL_ERROR": "1"})
    assert done.code == 3
    assert "exit code 3" in done.err or "status 3" in done.err
    assert secret not in done.out + done.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert secret.encode() not in path.read_bytes(), path


# 9. Each trouble is a clear error naming the rank and the file


def check_clear(text: str, *needles: str) -> None:
    assert "lllaunch/" not in text.replace("-m lllaunch/", ""), f"a traceback of ours:\n{text}"
    for needle in needles:
        assert needle in text, text


def test_9_a_program_that_is_not_there(tmp_path: Path) -> None:
    done = launch(tmp_path, {"entrypoint": "no-such-program-here"})
    assert done.code == 2
    check_clear(done.err, "launch.entrypoint", "no-such-program-here")
    assert not (tmp_path / "run" / "attempt_0").exists()


def test_9_a_worker_that_dies_in_its_import(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os\nos._exit(77)\ndef f(): pass\n")
    done = launch(tmp_path, {"entrypoint": "dying:f", "nproc": 2})
    assert done.code == 3
    check_clear(done.err, "77")


def test_9_a_full_disk(tmp_path: Path) -> None:
    def little_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    (tmp_path / "s.py").write_text("while True: print('y' * 1000)\n")
    done = launch(
        tmp_path, {"entrypoint": "s.py", "nproc": 1, "tee": "none"}, preexec_fn=little_space
    )
    assert done.code == 3
    check_clear(done.err, "File too large")


def test_9_no_space_for_hydras_own_files(tmp_path: Path) -> None:
    def no_space() -> None:
        # that of the lock, and not of the config
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    options: dict[str, Any] = {"preexec_fn": no_space, "stderr": subprocess.PIPE, "text": True}
    launcher = Launcher(tmp_path, {"entrypoint": "true", "nproc": 1}, **options)
    _, err = launcher.process.communicate(timeout=WAIT)
    assert launcher.process.returncode == 1
    assert err == f"lllaunch: {str(tmp_path / 'run')!r}: File too large\n"


def test_9_a_hostile_directory(tmp_path: Path) -> None:
    home = tmp_path / "with spaces, ünïcödé, per%cent, new\nline, quo'te\""
    home.mkdir()
    (home / "s.py").write_text("import sys; print('fine'); sys.exit(3)\n")
    done = launch(home, {"entrypoint": "s.py", "nproc": 2, "tee": "all"})
    assert done.code == 3
    assert done.log(1) == b"fine\n"
    check_clear(done.err, "exit")


def test_9_two_hundred_workers(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import os; print(os.environ['RANK'])\n")
    done = launch(tmp_path, {"entrypoint": "s.py", "nproc": 200, "tee": "all"})
    assert done.code == 0, done.err
    shown = [line for line in done.out.splitlines() if line.startswith("[")]
    assert len(shown) == 200
    assert {int(line.split(":")[-1]) for line in shown} == set(range(200))
