"""`execute` with real workers: files, causes, exit codes and what the user reads."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from lllaunch.console.console import Console
from lllaunch.run import execute
from lllaunch.spawner.protocol import Program
from lllaunch.spec import Entrypoint, LaunchSpec, Std
from lllaunch.supervisor import environ
from lllaunch.workers import tail
from lllaunch.workers.group import WorkerProcesses

if TYPE_CHECKING:
    from pathlib import Path

    from lllaunch.run.result import RunResult


# Arguments of `execute` that are not of the spec.
_HOW = ("spawner", "targets", "build", "job")


class Run:
    """One run in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "run"
        self.said = io.StringIO()
        self.outcome: RunResult

    def write(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(dedent(text))
        return str(path)

    def script(self, text: str, nproc: int = 1, **more: Any) -> RunResult:
        path = self.write("work.py", text)
        return self(Entrypoint("script", path, "work.py"), nproc, **more)

    def program(self, name: str, *args: str, nproc: int = 1, **more: Any) -> RunResult:
        return self(Entrypoint("program", name, name), nproc, args=args, **more)

    def function(self, text: str, nproc: int = 1, name: str = "main", **more: Any) -> RunResult:
        module = f"mod_{self.root.name}".replace("-", "_").replace("[", "_").replace("]", "_")
        self.write(f"{module}.py", text)
        entrypoint = Entrypoint("function", module, f"{module}:{name}", name)
        return self(entrypoint, nproc, **more)

    def __call__(self, entrypoint: Entrypoint, nproc: int, **more: Any) -> RunResult:
        how = {key: more.pop(key) for key in _HOW if key in more}
        more.setdefault("redirects", dict.fromkeys(range(nproc), Std.ALL))
        more.setdefault("tee", dict.fromkeys(range(nproc), Std.NONE))
        more.setdefault("grace_period", 60.0)
        more.setdefault("log_dir", str(self.path))
        spec = LaunchSpec(entrypoint, nproc, cwd=str(self.root), run_id="t", **more)
        console = Console(self.said, cwd=str(self.root))
        self.outcome = execute.Run(spec, "plan: é\n", "h", console, **how).execute()
        return self.outcome

    @property
    def text(self) -> str:
        return self.said.getvalue()

    @property
    def result(self) -> Any:
        return json.loads((self.path / "result.json").read_text())

    def events(self, name: str) -> list[Any]:
        lines = (self.path / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["type"] == name]

    def fates(self, attempt: int = -1) -> list[str]:
        return [worker["fate"] for worker in self.result["attempts"][attempt]["workers"]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.smoke
def test_success_leaves_what_the_reference_says(run: Run) -> None:
    outcome = run.script(
        """
        import os, sys, lllaunch
        print("out", os.environ["RANK"])
        print("err", os.environ["RANK"], file=sys.stderr)
        lllaunch.report({"rank": int(os.environ["RANK"])})
        """,
        nproc=2,
    )
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert sorted(os.listdir(run.path)) == [
        ".lllaunch.lock",
        "attempt_0",
        "events.jsonl",
        "latest",
        "plan.yaml",
        "result.json",
    ]
    worker = run.path / "latest" / "1"
    assert sorted(os.listdir(worker)) == ["return.json", "stderr.log", "stdout.log"]
    assert (worker / "stdout.log").read_text() == "out 1\n"
    assert (worker / "stderr.log").read_text() == "err 1\n"
    assert (run.path / "plan.yaml").read_text(encoding="utf-8") == "plan: é\n"
    result = run.result
    assert (result["state"], result["exit_code"], result["plan_hash"]) == ("succeeded", 0, "h")
    assert result["return_values"]["1"]["value"] == {"rank": 1}
    assert run.fates() == ["succeeded", "succeeded"]
    assert result["attempts"][0]["workers"][1]["stdout"] == "attempt_0/1/stdout.log"
    assert len(run.events("Exited")) == 2
    assert run.events("Finish")[0]["state"] == "SUCCEEDED"
    assert (
        run.text.splitlines()[0]
        == "lllaunch: attempt 0: 2 workers of work.py, logs in run/attempt_0"
    )
    assert run.text.splitlines()[1].startswith("lllaunch: succeeded in ")


@pytest.mark.smoke
def test_restart_after_a_failure(run: Run) -> None:
    outcome = run.script(
        """
        import os, sys
        print(os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1])
        sys.exit(5 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
        """,
        max_restarts=2,
        args=("${worker:attempt}",),
    )
    assert (outcome.exit_code, outcome.restarts) == (0, 1)
    assert (run.path / "attempt_1/0/stdout.log").read_text() == "1 1\n"
    assert [attempt["state"] for attempt in run.result["attempts"]] == ["failed", "succeeded"]
    assert "lllaunch: attempt 0: rank 0 called sys.exit(5) at work" in run.text
    assert "; restarting (1 of 2)\n" in run.text
    assert "after 1 restart; results in run\n" in run.text


def test_preload_that_fails_ends_with_2(run: Run) -> None:
    outcome = run.function("def main(): pass", preload=("no_such_module",))
    assert (outcome.state, outcome.exit_code) == ("error", 2)
    assert not (run.path / "attempt_0").exists()
    assert "lllaunch: launch.preload: 'no_such_module' could not be preloaded: " in run.text
    outcome = run.script("", preload=("no_such_module",))
    assert outcome.exit_code == 2
    assert "could not be started: preload of 'no_such_module' failed: ModuleNotFound" in run.text


# What the console shows of several workers

SAYING = """
import os, sys
print("ready")
print("I am", os.environ["RANK"])
print("warning", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "more",
    [{"nproc": 1}, {"nproc": 3, "tee": {0: Std.ALL}}, {"local_ranks_filter": (range(1),)}],
    ids=["one", "tee", "filter"],
)
def test_what_only_one_rank_can_show_has_no_prefix(
    run: Run, capfd: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    options = {"nproc": 3, "tee": dict.fromkeys(range(3), Std.ALL), **more}
    filters = ("I am",)
    assert run.script(SAYING, duplicate_stdout_filters=filters, **options).exit_code == 0
    assert capfd.readouterr() == ("ready\nI am 0\n", "warning\n")
    # files are what they were
    filtered = run.path / "attempt_0" / "filtered_stdout.log"
    assert filtered.read_text() == "[default0]:I am 0\n"


def test_what_several_ranks_say_is_shown_once(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # however far apart they say it
    monkeypatch.setattr(tail, "_HELD_S", 1000.0)
    # over both streams the order in which lines are seen may differ from rank to rank, and then
    # not all is shown once
    script = """
        import os
        print("ready")
        print("I am", os.environ["RANK"])
        """
    assert run.script(script, 3, tee=dict.fromkeys(range(3), Std.ALL)).exit_code == 0
    together, *own = capfd.readouterr().out.splitlines()
    assert together == "[default 0-2]:ready"
    assert sorted(own) == [f"[default{rank}]:I am {rank}" for rank in range(3)]
    for rank in range(3):
        log = run.path / "attempt_0" / str(rank) / "stdout.log"
        assert log.read_text() == f"ready\nI am {rank}\n"


# Ends


def test_process_left_behind_is_reported(run: Run) -> None:
    outcome = run.program("sh", "-c", "sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done")
    assert outcome.exit_code == 0
    (leftover,) = run.result["attempts"][0]["leftovers"]
    assert leftover["killed"]
    assert f"a worker left process {leftover['pid']} behind (sleep 1000); it was killed" in run.text


@pytest.mark.parametrize("end", ["open('uploaded', 'w')", "os.kill({}, 15); time.sleep(1000)"])
def test_process_left_behind_may_end_by_itself_until_a_signal_comes(run: Run, end: str) -> None:
    upload = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    while 'CleanUp' not in open('run/events.jsonl').read(): time.sleep(0.01)\n"
        "    time.sleep(1)\n"
    )
    text = f"{upload}    {end.format(os.getpid())}\n    os._exit(0)\n"
    outcome = run.script(text, leftovers=1000.0, signals=(signal.SIGTERM,))
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert (run.root / "uploaded").exists() == ("uploaded" in end)


def test_signal_after_the_workers_have_succeeded_takes_nothing_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_up = WorkerProcesses.clean_up

    def signalled(workers: WorkerProcesses, settle: float) -> None:
        signal.raise_signal(signal.SIGTERM)
        clean_up(workers, settle)

    monkeypatch.setattr(WorkerProcesses, "clean_up", signalled)
    outcome = run.function("def main(): return 7", signals=(signal.SIGTERM,))
    assert (outcome.state, outcome.exit_code, outcome.signum) == ("succeeded", 0, None)
    assert run.result["return_values"]["0"]["value"] == 7


def test_signals_while_the_end_is_written_come_when_it_is(run: Run) -> None:
    came: list[int] = []
    signals = (signal.SIGTERM, signal.SIGHUP)

    def at_the_end() -> dict[str, Any]:
        for signum in (*signals, signal.SIGTERM):
            signal.raise_signal(signum)
        assert came == []
        return {}

    def handler(signum: int, _: object) -> None:
        came.append(signum)
        assert run.result["state"] == "succeeded"

    before = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        outcome = run.script("", build=at_the_end, signals=signals)
    finally:
        for signum, former in before.items():
            signal.signal(signum, former)
    assert outcome.state == "succeeded"
    assert came == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    assert "succeeded in" in run.text


def test_too_few_devices_for_virtual_ranks_start_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    outcome = run.script("", nproc=3, virtual_local_rank=True)
    assert (outcome.state, outcome.exit_code) == ("error", 2)
    said = "launch.virtual_local_rank: expected a device for local rank 2, got "
    assert f"{said}CUDA_VISIBLE_DEVICES='0,1' [gpus]" in run.text
    assert not (run.path / "attempt_0").exists()


@pytest.mark.parametrize(
    ("program", "state", "code"),
    # a failure of the workers counts more
    [("true", "error", 1), ("false", "failed", 3)],
)
def test_full_disk_while_recording_warns_once_and_ends_in_an_error(
    run: Run, program: str, state: str, code: int
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        outcome = run.program(program, nproc=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (outcome.state, outcome.exit_code) == (state, code)
    events, result = (run.path / name for name in ("events.jsonl", "result.json"))
    assert run.text.count(f"lllaunch: warning: '{events}': File too large\n") == 1
    warning = "warning: " if program == "false" else ""
    assert f"lllaunch: {warning}'{result}': File too large\n" in run.text
    assert ("Root cause: rank" in run.text) == (program == "false")
    assert not result.exists()
    assert "Traceback" not in run.text


def test_no_port_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "candidates", lambda _: ())
    outcome = run.program("true")
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert "no free port was found for MASTER_PORT" in run.text
    assert "internal error" not in run.text


def test_bug_of_ours_is_told_and_still_leaves_a_result(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target_of(*_: Any) -> Program:
        raise KeyError("a bug")

    monkeypatch.setattr(execute, "target_of", target_of)
    outcome = run(Entrypoint("program", "x", "x"), 1)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert run.text.startswith("lllaunch: internal error\n  Traceback (most recent call last):\n")
    assert run.result["state"] == "error"
