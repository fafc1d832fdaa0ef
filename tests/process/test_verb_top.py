"""``top`` of runs that go on: on a pipe, on a terminal, and with the keys of textual's app."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.launching import WAIT, Launcher, text_of, until
from support.screen import Terminal as Screen
from textual.widgets import DataTable, HelpPanel, Input

from lllaunch.results.live import LiveReader
from lllaunch.verbs import ls, top
from lllaunch.verbs.top import watched
from lllaunch.verbs.top_app import ListScreen, TopApp

if TYPE_CHECKING:
    from textual.pilot import Pilot

SCRIPT = """\
import os, sys, time
import lllaunch
rank = int(os.environ["RANK"])
for step in range(1, 11 - 5 * rank):
    lllaunch.progress(step, 40, loss=1 / step)
print("first of", rank, flush=True)
print("an error of", rank, file=sys.stderr, flush=True)
print("a bar of", rank, end="\\r", flush=True)
def wait_for_the_file():
    while not os.path.exists("go"):
        time.sleep(0.01)
wait_for_the_file()
"""
NODE = {"entrypoint": "s.py", "nproc": 2, "redirects": "all", "samples": "1s"}


def shows(samples: Path, *steps: float) -> bool:
    """Whether the last sample has ranks that are so far."""
    lines = text_of(samples).rpartition("\n")[0].splitlines()
    ranks = json.loads(lines[-1])["ranks"] if lines else {}
    return tuple(worker.get("step") for worker in ranks.values()) == steps


def begun(directory: Path, *overrides: str) -> Launcher:
    """A run whose workers have shown how far they are, and wait."""
    (directory / "s.py").write_text(SCRIPT)
    launcher = Launcher(directory, NODE, *overrides)
    samples = directory / "run/samples.jsonl"
    until(lambda: shows(samples, 10, 5), "progress")
    return launcher


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A run that goes on until the file ``go`` is there."""
    monkeypatch.chdir(tmp_path)
    launcher = begun(tmp_path)
    yield launcher
    (tmp_path / "go").touch()
    launcher.finish()


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert top.top(arguments) == code
    out, err = capsys.readouterr()
    assert bool(err) == bool(code)
    return err if code else out


def test_on_a_pipe_it_is_shown_once(run: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    head, titles, row = said(capsys).splitlines()
    assert head == "1 running; in outputs/ multirun/ run/"
    assert titles.split()[:4] == ["path", "state", "time", "step"]
    assert row.split()[:2] == ["run", "running"]
    assert "10/40" in row
    assert "rank 1" in row
    assert [row["kind"] for row in json.loads(said(capsys, "--json"))["rows"]] == ["run"]
    lines = said(capsys, "run").splitlines()
    assert lines[0].startswith("run: running, attempt 0, ")
    assert lines[0].endswith("2 ranks, step 10/40, rank 1 is slowest (step 5)")
    assert [line.split()[:3] for line in lines[-2:]] == [
        *(["0", "running", "10/40"], ["1", "running", "5/40"])
    ]
    document = json.loads(said(capsys, "run", "--json"))
    assert document["run"]["path"] == str(run.run_dir)
    steps = [(rank["rank"], rank["step"], rank["metrics"]["loss"]) for rank in document["ranks"]]
    assert steps == [(0, 10.0, 0.1), (1, 5.0, 0.2)]


def test_what_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(capsys) == "nothing runs; in outputs/ multirun/\n"
    (tmp_path / "empty").mkdir()
    assert said(capsys, "empty") == "nothing runs; in empty/\n"
    assert "'nowhere' does not exist" in said(capsys, "nowhere", code=2)
    for wrong in ("x", "0", "nan"):
        told = said(capsys, "--interval", wrong, code=2)
        assert f"--interval: expected seconds, 0.1 to 86400, got '{wrong}'" in told


def test_a_sweep_and_what_a_list_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ("-m", "launch.nproc=1", "+params.a=1,2,3", "hydra.sweep.dir=sweep")
    one_by_one = "hydra.launcher.max_parallel=1"
    (tmp_path / "s.py").write_text(SCRIPT)
    launcher = Launcher(tmp_path, NODE, *sweep, one_by_one)
    samples = tmp_path / "sweep/0/samples.jsonl"
    until(lambda: shows(samples, 10), "progress")
    view = json.loads(said(capsys, "sweep", "--json"))
    assert view["sweep"]["counts"] == {"running": 1, "waiting": 2}
    assert [(job["job"], job["state"], job["step"]) for job in view["jobs"]] == [(0, "running", 10)]
    assert said(capsys, "sweep").splitlines()[-1] == "and 2 more waiting"
    assert ls.ls(["--jobs", "sweep", "."]) == 0
    listed, job = capsys.readouterr().out.splitlines()[1:]
    assert "0/3 done, 1 running, 2 waiting" in listed
    assert "10/40" in job
    (tmp_path / "go").touch()
    launcher.finish()
    assert "3/3 done" in said(capsys, "sweep")


# On a terminal


class Terminal(Screen):
    """``top`` on a terminal, and what stands on its screen."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        columns: int = 100,
        lines: int = 20,
        command: Sequence[str] = ("-m", "lllaunch"),
    ) -> None:
        super().__init__(columns, lines)
        # whoever exports these wants no other size
        environ = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, *command, "top", *arguments],
            cwd=directory,
            stdin=self.stream,
            stdout=self.stream,
            stderr=self.stream,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - its own
        )

    def ended(self) -> tuple[int, list[str]]:
        code = self.process.wait(WAIT)
        return code, self.lines()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        super().close()


@pytest.fixture
def terminal(run: Launcher) -> Iterator[Callable[..., Terminal]]:
    with contextlib.ExitStack() as stack:

        def opened(*arguments: str, **options: Any) -> Terminal:
            found = Terminal(run.directory, *arguments, **options)
            stack.callback(found.close)
            return found

        yield opened


@pytest.mark.smoke
def test_a_table_is_drawn_in_its_place_until_the_run_is_over(
    run: Launcher, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("run", "--plain", "--interval", "0.1")
    lines = shown.until(lambda lines: any("5/40" in line for line in lines), "the ranks")
    assert lines[0].startswith("run: running, attempt 0")
    # the time goes on, and there is still one table
    former = lines[0]
    lines = shown.until(lambda lines: lines[0] not in {"", former}, "a later time")
    assert sum("running" in line for line in lines) == 3
    shown.resize(60, 10)
    shown.until(lambda lines: any(line.startswith("run: ") for line in lines), "a smaller one")
    (run.directory / "go").touch()
    code, lines = shown.ended()
    assert code == 0
    assert sum(line.startswith("run: ") for line in lines) == 1
    (head,) = [line for line in lines if line.startswith("run: ")]
    assert head.startswith("run: succeeded, attempt 0")


def test_ctrl_c_ends_it_quietly(terminal: Callable[..., Terminal]) -> None:
    for arguments in (("--plain",), ()):
        shown = terminal(*arguments)
        shown.until(lambda lines: any("10/40" in line for line in lines), "the run")
        shown.type("\x03")
        code, lines = shown.ended()
        assert code in {0, 128 + signal.SIGINT}
        assert not any("Traceback" in line for line in lines)


def test_keys_are_obeyed_on_a_terminal(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(columns=60, lines=15)
    lines = shown.until(lambda lines: any("10/40" in line for line in lines), "the run")
    assert "sort" in lines[-1]
    shown.type("\r")
    shown.until(lambda lines: any("5/40" in line for line in lines), "its ranks")
    assert lines[-1].endswith("help")
    shown.resize(120, 30)
    lines = shown.until(lambda lines: "stacks" in lines[29], "the larger screen")
    assert "rank 1 is slowest" in lines[0]
    shown.type("q")
    assert shown.ended()[0] == 0


def test_without_textual_it_is_a_table(terminal: Callable[..., Terminal]) -> None:
    lacking = "import sys; sys.modules['textual'] = None; import lllaunch.__main__ as m; m.main()"
    shown = terminal("run", "--interval", "0.1", command=("-c", lacking))
    lines = shown.until(lambda lines: any("5/40" in line for line in lines), "the ranks")
    # no keys are told of
    assert not any("quit" in line for line in lines)
    former = lines[0]
    shown.until(lambda lines: lines[0] not in {"", former}, "a later time")


# Keys


class Keys:
    """The app, its keys, and what is shown."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app, self._pilot, self.press = app, pilot, pilot.press

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.rows}"
            await self._pilot.pause(0.02)

    @property
    def table(self) -> DataTable[Any]:
        found: DataTable[Any] = self.app.screen.query_one(DataTable)
        return found

    @property
    def rows(self) -> list[list[str]]:
        table = self.table
        return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]

    @property
    def titles(self) -> list[str]:
        return [str(column.label) for column in self.table.ordered_columns]

    def shows(self, kind: type) -> bool:
        return isinstance(self.app.screen, kind)


def with_keys(name: str | None, test: Callable[[Keys], Awaitable[None]]) -> None:
    """Look at something with keys."""

    async def play() -> None:
        app = TopApp(watched(name), LiveReader(), 0.1)
        async with app.run_test(size=(140, 30)) as pilot:
            keys = Keys(app, pilot)
            await keys.until(lambda: keys.shows(ListScreen), "the list")
            await keys.until(lambda: keys.table.row_count, "a row")
            await test(keys)
            await keys.press("q")

    asyncio.run(play())


def test_rows_are_sorted_and_filtered(run: Launcher) -> None:
    async def test(keys: Keys) -> None:
        await keys.press("question_mark")
        await keys.until(lambda: keys.app.screen.query(HelpPanel), "the keys")
        await keys.press("question_mark")
        await keys.until(lambda: not keys.app.screen.query(HelpPanel), "the list alone")
        assert [row[0] for row in keys.rows] == ["0", "1"]
        step = keys.titles.index("step")
        for _ in range(step + 1):
            await keys.press("s")
        assert keys.titles[step] == "step^"
        await keys.until(lambda: [row[0] for row in keys.rows] == ["1", "0"], "the other order")
        await keys.press("r")
        assert keys.titles[step] == "stepv"
        assert [row[0] for row in keys.rows] == ["0", "1"]
        # after the last column as at first
        for _ in range(len(keys.titles) - step):
            await keys.press("s")
        assert all(title[-1] not in "^v" for title in keys.titles)
        await keys.press("slash")
        assert keys.app.screen.query_one(Input).has_focus
        await keys.press(*"nothing")
        await keys.until(lambda: keys.table.row_count == 0, "no row")
        await keys.press("escape")
        await keys.until(lambda: keys.table.row_count == 2, "all rows")
        await keys.press("slash", *"running", "enter")
        assert keys.table.has_focus
        assert keys.table.row_count == 2
        await keys.press("escape")
        await keys.until(lambda: not keys.app.screen.query_one(Input).display, "no filter")

    with_keys("run", test)


# Verbs in the same terminal


def test_the_log_of_a_rank_is_followed(run: Launcher, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("run", lines=15)
    shown.until(lambda lines: any("5/40" in line for line in lines), "the ranks")
    shown.type("\x1b[Bl")
    # the emulated screen has no second one: what the app has drawn stays around it
    lines = shown.until(lambda lines: any("a bar of 1" in line for line in lines), "its lines")
    assert all(any(text in line for line in lines) for text in ("first of 1", "an error of 1"))
    assert not any("of 0" in line for line in lines)
    with open(run.run_dir / "attempt_0/1/stdout.log", "ab") as log:
        log.write(b"one more\n")
    shown.until(lambda lines: any("one more" in line for line in lines), "one more")
    # it ends, and the app does not
    shown.type("\x03\r")
    shown.until(lambda lines: any("5/40" in line for line in lines), "the ranks again")
    shown.type("q")
    assert shown.ended()[0] == 0


def test_stacks_are_shown(terminal: Callable[..., Terminal]) -> None:
    shown = terminal("run", lines=30)
    shown.until(lambda lines: any("5/40" in line for line in lines), "the ranks")
    shown.type("\x1b[Bk")
    # of a rank all threads
    lines = shown.until(lambda lines: any("wait_for_the_file" in line for line in lines), "stacks")
    assert any("Rank 1, process" in line for line in lines)
    shown.until(lambda lines: any("Enter shows the list" in line for line in lines), "its end")
    shown.type("\rq")
    assert shown.ended()[0] == 0


def test_a_run_is_stopped_only_after_a_yes(
    run: Launcher, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal()

    def asked(answer: str) -> None:
        head = "1 running; in outputs/"
        shown.until(lambda lines: lines[0].strip().startswith(head), "the run")
        shown.type("x")
        asks = "Stop the run run? [y/N]"
        shown.until(lambda lines: any(asks in line for line in lines), "the question")
        shown.type(f"{answer}\r")

    asked("n")
    asked("y")
    shown.until(lambda lines: any("exit code 143" in line for line in lines), "its end")
    shown.type("\r")
    shown.until(lambda lines: any("signalled" in line for line in lines), "its state")
    shown.type("q")
    assert shown.ended()[0] == 0
    assert run.finish().code == 128 + signal.SIGTERM
