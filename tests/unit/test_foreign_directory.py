"""Somebody else's directory: who looks at it waits for nothing there and follows nothing out."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import until
from support.left import LeftRun, LeftSweep

from lllaunch import verbs
from lllaunch.app import sweeper
from lllaunch.errors import LaunchError, OutputError
from lllaunch.run.directory import RunDirectory
from lllaunch.run.result import Succeeded
from lllaunch.run.submission import BatchStarted, append
from lllaunch.sweep.journal import ComposedRecord, Header, Journal
from lllaunch.verbs import logs, stop

SECRET = "hunter22"
GONE = f"pid 4194304 on {socket.gethostname()}\n"  # above any process id

RUN_FILES = (
    *("result.json", "plan.yaml", "events.jsonl", "samples.jsonl", ".lllaunch.lock"),
    *("submission.jsonl", "launcher.log", ".hydra/overrides.yaml"),
    *("attempt_0/0/stdout.log", "attempt_0/0/stderr.log", "attempt_0/stacks.txt"),
)
SWEEP_FILES = ("sweep.jsonl", "sweep.json", "multirun.yaml", ".lllaunch-sweep.lock")
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "zeros": lambda path, _: path.symlink_to("/dev/zero"),
    "link": lambda path, secret: path.symlink_to(secret),
    "node": lambda path, secret: (
        (path.parent / "node_0").symlink_to(secret.parent),
        path.symlink_to(f"node_0/{secret.name}"),
    ),
    "sparse": lambda path, _: (path.touch(), os.truncate(path, 1 << 42)),
    "nested": lambda path, _: path.write_text('{"type": "StartWorkers", "a": ' + "[" * 60_000),
}
VERBS = (
    *("ls .", "ls --jobs .", "show {}", "show --json {}", "report {}", "report --format=html {}"),
    *("logs {}", "logs -f {}", "logs --launcher {}", "stacks {}", "wait {}", "stop {}"),
    *("top --once --plain", "top --once --json {}"),
)

# what is opened, and with which flags, as long as somebody wants to know
opened: list[list[tuple[str, int]]] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(args[0], str):
        for each in opened:
            each.append((os.path.abspath(args[0]), args[2]))


sys.addaudithook(_note)


@contextlib.contextmanager
def only_carefully(directory: Path) -> Iterator[None]:
    """Expect that files of a directory are opened by `lllaunch.files.open_file` alone."""
    needed = os.O_NOFOLLOW | os.O_NONBLOCK
    opened.append([])
    try:
        yield
    finally:
        below = [(path, flags) for path, flags in opened.pop() if path.startswith(f"{directory}/")]
    assert below
    careful = (flags & needed == needed or flags & os.O_PATH for _, flags in below)
    assert all(careful), below


@pytest.mark.parametrize("kind", KINDS)
def test_no_verb_waits_or_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(f'{SECRET}: ["{SECRET}"]\n')
    outputs = tmp_path / "outputs"
    for file in (*RUN_FILES, *SWEEP_FILES):
        directory = outputs / file.replace("/", "-")
        if file in SWEEP_FILES:
            sweep = LeftSweep(directory, Header("id", "0", ("app",)))
            sweep.add(ComposedRecord(0, ("a=1",), "0", "f"))
            sweep.over(0)
        else:
            run = LeftRun(directory)
            run.ends("succeeded", 0, run.attempt(run.worker(0, Succeeded())))
            run.log(0, "stdout", "said\n")
            (directory / ".lllaunch.lock").write_text(GONE)
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).unlink(missing_ok=True)
        KINDS[kind](directory / file, tmp_path / "secret")
        if kind == "sparse" and file.endswith(".log"):
            (directory / file).unlink()  # which is shown, however long
    with only_carefully(outputs):
        for directory in sorted(outputs.iterdir()):
            sweeper.completed([f"hydra.launcher.resume={directory}"])
            with contextlib.suppress(LaunchError):
                Journal.open(str(directory / "sweep.jsonl")).close()
            for words in VERBS:
                verb, *arguments = words.format(directory).split()
                verbs.verb(verb)(arguments)
                shown = "".join(capfd.readouterr())
                assert "Traceback" not in shown
                assert SECRET not in shown


def test_stop_signals_nobody_whose_lock_is_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock"
    script = (
        "import fcntl, os, socket, time\n"
        "file = open('lock', 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('pid', os.getpid(), 'on', socket.gethostname(), file=file, flush=True)\n"
        "time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    try:
        until(lambda: lock.exists() and lock.read_text(), "the other process")
        (LeftRun(tmp_path / "run").path / ".lllaunch.lock").symlink_to(lock)
        assert stop.stop([str(tmp_path / "run")]) == 2
        assert "may be running or not: its lock cannot be looked at" in capfd.readouterr().err
        assert other.poll() is None
    finally:
        other.kill()
        assert other.wait() == -signal.SIGKILL


def test_a_run_empties_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / ".lllaunch.lock").symlink_to("precious")
    with pytest.raises(OutputError):
        RunDirectory.claim(str(tmp_path))
    (tmp_path / "submission.jsonl").symlink_to("precious")
    with pytest.raises(OutputError):
        append(str(tmp_path), BatchStarted("1"))
    assert (tmp_path / "precious").read_text() == "text"


@pytest.mark.parametrize("linked", ["attempt_0/0/stdout.log", "attempt_0/0", "attempt_0"])
def test_logs_shows_nothing_from_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], linked: str
) -> None:
    run = LeftRun(tmp_path / "run")
    run.log(0, "stdout", SECRET)
    run.log(1, "stdout", "own")
    (run.path / linked).rename(tmp_path / "elsewhere")
    (run.path / linked).symlink_to(tmp_path / "elsewhere")
    code = logs.logs([str(run.path)])
    assert SECRET not in capfd.readouterr().out
    assert code == (2 if linked == "attempt_0" else 0)


def test_names_move_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a\x1b[2J\u202e\nmoved"
    run = LeftRun(tmp_path / "outputs" / name)
    run.ends("succeeded", 0, run.attempt(run.worker(0, Succeeded())))
    for words in (words for words in VERBS if "html" not in words):
        verb, *arguments = (part.replace("{}", f"outputs/{name}") for part in words.split())
        verbs.verb(verb)(arguments)
        shown = "".join(capfd.readouterr())
        assert not [each for each in ("\x1b", "\u202e", "\nmoved") if each in shown], words
