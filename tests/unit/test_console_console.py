"""The console: what it says during a run, to which kind of stream, and that it never fails."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from support.left import placed

from lllaunch.console.console import Console
from lllaunch.run.result import AttemptResult, ExitedNonZero, RootCause, RunResult, Succeeded
from lllaunch.spec import ConsolePolicy
from lllaunch.watchdog.progress import Progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def said(speak, stream: io.StringIO | None = None) -> str:
    stream = io.StringIO() if stream is None else stream
    speak(Console(stream, cwd="/home/ada"))
    return stream.getvalue()


FAILED = RunResult("failed", 3, "/home/ada/run")
ROOT = RootCause(0, 1, 1, ExitedNonZero(1), 0)


def failed(
    number: int, root: RootCause | None = None, progress: Progress | None = None
) -> AttemptResult:
    worker = placed(0, Succeeded(), progress=progress)
    return AttemptResult(number, 0, "/run", "failed", 0, 0, (worker,), root)


@pytest.mark.parametrize(
    ("speak", "text"),
    [
        (
            lambda console: console.started(3, 1, "mod:fn", "/mnt/run/attempt_3"),
            "attempt 3: 1 worker of mod:fn, logs in /mnt/run/attempt_3",
        ),
        (
            lambda console: console.restarting(failed(0, ROOT, Progress(7.0)), 1, 3),
            "attempt 0: rank 1 exited with status 1, at step 7; restarting (1 of 3)",
        ),
        (lambda console: console.restarting(failed(1), 2, None), "attempt 1: failed; restarting"),
        (
            lambda console: console.signalled(10, 1, 0.5),
            (
                "SIGUSR1 received, forwarded to 1 worker; "
                "SIGKILL follows in 0.5 s, or now on a second signal"
            ),
        ),
        (
            lambda console: console.signalled(15, 2, 30, announced=12),
            (
                "SIGUSR2 received, the batch job is about to end: SIGTERM goes to 2 workers; "
                "SIGKILL follows in 30 s"
            ),
        ),
        (lambda console: console.killing(2, None), "SIGINT again, killing the preflight"),
    ],
)
def test_messages(speak, text):
    assert said(speak) == f"lllaunch: {text}\n"


@pytest.mark.parametrize(
    ("terminal", "color", "environ", "coloured"),
    [
        (True, None, {}, True),
        (True, None, {"NO_COLOR": "1"}, False),
        (True, None, {"TERM": "dumb"}, False),
        # a log
        (False, None, {}, False),
        (False, None, {"FORCE_COLOR": "1"}, True),
        (False, "always", {"NO_COLOR": "1"}, True),
        (False, "never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_a_report_has_the_colours_that_the_config_the_environment_and_the_stream_want(
    monkeypatch, terminal, color, environ, coloured
):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def fail(console: Console) -> None:
        console.obey(ConsolePolicy(color=color))
        console.finished(FAILED)

    text = said(fail, Terminal() if terminal else None)
    assert ("31m" in text) is coloured
    if coloured:
        assert text == "\x1b[1;31mlllaunch: FAILED after 0 ms (exit code 3)\x1b[0m\n"
    elif not terminal:
        assert text == "lllaunch: FAILED after 0 ms (exit code 3)\n"


def test_ascii_stream_gets_escapes():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(stream, cwd="/").warning("naïve \udcff")
    assert raw.getvalue() == b"lllaunch: warning: na\\xefve \\udcff\n"


def test_a_quiet_console_says_what_goes_wrong_and_nothing_else() -> None:
    def speak(console: Console) -> None:
        console.obey(ConsolePolicy(quiet=True))
        console.started(0, 2, "train.py", "/home/ada/run/attempt_0")
        console.restarting(failed(0, ROOT), 1, 3)
        console.finished(replace(FAILED, state="succeeded", exit_code=0))
        console.finished(FAILED)

    restarting, report, *_ = said(speak).splitlines()
    assert restarting == "lllaunch: attempt 0: rank 1 exited with status 1; restarting (1 of 3)"
    assert report.startswith("lllaunch: FAILED")
