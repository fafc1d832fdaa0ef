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
from lllaunch.run.execute import execute
from lllaunch.run.samples import last_sample
from lllaunch.spawner.protocol import Program
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.std import Std
from lllaunch.workers import tail

if TYPE_CHECKING:
    from pathlib import Path

    from lllaunch.run.outcome import RunOutcome


# Arguments of `execute` that are not of the spec.
_HOW = ("spawner", "targets", "build", "job")


class Run:
    """One run in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "run"
        self.said = io.StringIO()
        self.outcome: RunOutcome

    def write(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(dedent(text))
        return str(path)

    def script(self, text: str, nproc: int = 1, **more: Any) -> RunOutcome:
        path = self.write("work.py", text)
        return self(Entrypoint("script", path, "work.py"), nproc, **more)

    def program(self, name: str, *args: str, nproc: int = 1, **more: Any) -> RunOutcome:
        return self(Entrypoint("program", name, name), nproc, args=args, **more)

    def function(self, text: str, nproc: int = 1, name: str = "main", **more: Any) -> RunOutcome:
        module = f"mod_{self.root.name}".replace("-", "_").replace("[", "_").replace("]", "_")
        self.write(f"{module}.py", text)
        entrypoint = Entrypoint("function", module, f"{module}:{name}", name)
        return self(entrypoint, nproc, **more)

    def __call__(self, entrypoint: Entrypoint, nproc: int, **more: Any) -> RunOutcome:
        how = {key: more.pop(key) for key in _HOW if key in more}
        more.setdefault("redirects", dict.fromkeys(range(nproc), Std.ALL))
        more.setdefault("tee", dict.fromkeys(range(nproc), Std.NONE))
        more.setdefault("grace_period", 60.0)
        more.setdefault("log_dir", str(self.path))
        spec = LaunchSpec(entrypoint, nproc, cwd=str(self.root), run_id="t", **more)
        console = Console(self.said, cwd=str(self.root))
        self.outcome = execute(spec, plan_text="plan: é\n", plan_hash="h", console=console, **how)
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


def test_return_values_of_a_function(run: Run) -> None:
    outcome = run.function(
        """
        import os
        def main(scale, *, shift):
            value = scale * int(os.environ["RANK"]) + shift
            return value if value < 3 else {value}
        """,
        nproc=3,
        args=(2,),
        kwargs={"shift": 1},
    )
    assert outcome.exit_code == 0, run.text
    values = run.result["return_values"]
    assert [values["0"]["value"], values["0"]["type"]] == [1, "int"]
    assert "value" not in values["1"]
    assert values["1"]["type"] == "set"
    assert (run.path / values["2"]["path"]).stat().st_size == values["2"]["size"]
    assert outcome.return_values[0].json == "1"


@pytest.mark.smoke
def test_exception_is_the_root_cause_and_the_others_are_ended(run: Run) -> None:
    outcome = run.script(
        """
        import os, time
        if os.environ["RANK"] == "1":
            raise ValueError("bad batch")
        time.sleep(1000)
        """,
        nproc=3,
    )
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert run.fates() == ["ended", "failed", "ended"]
    assert run.result["root_cause"]["cause"]["message"] == "ValueError: bad batch"
    assert "    ValueError: bad batch\n" in run.text
    assert "    ranks 0, 2  ended by the launcher (SIGTERM) after the root cause\n" in run.text


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


def test_a_later_run_in_the_same_directory_goes_on_with_the_numbers(run: Run) -> None:
    for number in range(2):
        run.script("import sys; print(sys.argv[1])", args=("${worker:attempt}",))
        assert (run.path / f"attempt_{number}/0/stdout.log").read_text() == f"{number}\n"
        assert os.readlink(run.path / "latest") == f"attempt_{number}"
    assert [attempt["attempt"] for attempt in run.result["attempts"]] == [1]
    assert len(run.events("Begin")) == 2


@pytest.mark.parametrize(
    ("signum", "name", "word"), [(9, "SIGKILL", "outside"), (11, "SIGSEGV", "itself")]
)
def test_signal_that_the_launcher_did_not_send(run: Run, signum: int, name: str, word: str) -> None:
    run.script(f"import os; os.kill(os.getpid(), {signum})")
    root = run.result["root_cause"]
    assert (root["cause"]["type"], root["cause"]["signum"]) == ("KilledBySignal", signum)
    assert root["explanation"]["suspect"] == word
    assert f"Root cause: rank 0 (attempt 0) died of {name}" in run.text
    assert "    Why (" in run.text


def test_death_of_the_spawner_is_a_cause_of_its_own_and_retried_once(run: Run) -> None:
    outcome = run.script(
        """
        import os, signal, time
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
        """,
        nproc=2,
    )
    assert (outcome.state, outcome.exit_code, outcome.restarts) == ("failed", 3, 1)
    assert run.result["root_cause"]["cause"]["type"] == "SpawnerLost"
    assert run.result["root_cause"]["rank"] is None
    assert run.fates() == ["lost", "lost"]
    lost = "all workers (attempt 1) were lost: the process that forks workers (pid "
    assert f"Root cause: {lost}" in run.text
    assert "; restarting\n" in run.text


def test_program_that_is_not_there(run: Run) -> None:
    outcome = run.program("no-such-program", nproc=2)
    assert outcome.exit_code == 3
    assert run.result["root_cause"]["cause"]["type"] == "StartFailure"
    assert "could not be started: 'no-such-program': No such file or directory" in run.text


def test_return_value_that_cannot_be_pickled(run: Run) -> None:
    outcome = run.function("def main(): return lambda: 0")
    assert outcome.exit_code == 3
    assert run.result["root_cause"]["cause"]["type"] == "NotPicklableReturn"
    assert "rank 0 (attempt 0) returned a value that cannot be pickled: " in run.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("other = 1", "AttributeError: module "),
        ("main = 1", "TypeError: "),
        ("def main(): pass", "the arguments do not fit "),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_function_that_cannot_be_called_is_found_out_before_the_first_attempt(
    run: Run, text: str, problem: str
) -> None:
    outcome = run.function(text, args=(1,))
    assert (outcome.state, outcome.exit_code) == ("error", 2)
    assert not (run.path / "attempt_0").exists()
    assert "lllaunch: launch.entrypoint: 'mod_" in run.text
    assert f"cannot be run: {problem}" in run.text
    assert "Traceback" not in run.text
    assert run.result["exit_code"] == 2


def test_import_that_fails_is_shown_by_its_attempt(run: Run) -> None:
    outcome = run.function("raise RuntimeError('not today')\ndef main(): pass")
    assert outcome.exit_code == 3
    assert "rank 0 (attempt 0) raised RuntimeError: not today" in run.text


def test_preload_that_fails_ends_with_2(run: Run) -> None:
    outcome = run.function("def main(): pass", preload=("no_such_module",))
    assert (outcome.state, outcome.exit_code) == ("error", 2)
    assert not (run.path / "attempt_0").exists()
    assert "lllaunch: launch.preload: 'no_such_module' could not be preloaded: " in run.text
    outcome = run.script("", preload=("no_such_module",))
    assert outcome.exit_code == 2
    assert "could not be started: preload of 'no_such_module' failed: ModuleNotFound" in run.text


def test_checked_function_pays_for_its_preloads_once(run: Run) -> None:
    counted = "import os\nwith open('loads', 'a') as f: f.write('x')\n"
    run.write("counted.py", counted)
    outcome = run.function(
        "import os\ndef main(): return os.environ['OMP_NUM_THREADS']",
        nproc=2,
        preload=("counted",),
        env={"KMP_SETTINGS": "0"},
    )
    assert outcome.exit_code == 0, run.text
    assert (run.root / "loads").read_text() == "x"
    assert run.result["return_values"]["1"]["value"] == "1"


# What the console shows of several workers

SAYING = """
import os, sys
print("ready")
print("I am", os.environ["RANK"])
print("warning", file=sys.stderr)
"""
# Over both streams the order in which lines are seen may differ from rank to rank, and then not
# all is shown once.
SAYING_ON_ONE = """
import os, sys
print("ready", file=sys.{0})
print("I am", os.environ["RANK"], file=sys.{0})
"""


def shown(capfd: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [text.splitlines() for text in capfd.readouterr()]


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
    assert shown(capfd) == [["ready", "I am 0"], ["warning"]]
    # files are what they were
    filtered = run.path / "attempt_0" / "filtered_stdout.log"
    assert filtered.read_text() == "[default0]:I am 0\n"


@pytest.mark.parametrize(
    ("stream", "more", "together", "own"),
    [
        ("stdout", {}, "[default 0-2]:", "[default{}]:"),
        (
            "stderr",
            {"log_line_prefix": "${worker:local_rank}> ", "collapse": True},
            "0-2> ",
            "{}> ",
        ),
    ],
    ids=["default", "template"],
)
def test_what_several_ranks_say_is_shown_once(
    run: Run,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    more: dict[str, Any],
    together: str,
    own: str,
) -> None:
    # however far apart they say it
    monkeypatch.setattr(tail, "_HELD_S", 1000.0)
    script = SAYING_ON_ONE.format(stream)
    assert run.script(script, 3, tee=dict.fromkeys(range(3), Std.ALL), **more).exit_code == 0
    out, err = shown(capfd)
    lines, nothing = (out, err) if stream == "stdout" else (err, out)
    assert lines[0] == f"{together}ready"
    assert sorted(lines[1:]) == [f"{own.format(rank)}I am {rank}" for rank in range(3)]
    assert nothing == []
    for rank in range(3):
        log = run.path / "attempt_0" / str(rank) / f"{stream}.log"
        assert log.read_text() == f"ready\nI am {rank}\n"


@pytest.mark.parametrize(
    ("more", "own"),
    [({"collapse": False}, "[default{}]:"), ({"log_line_prefix": "${worker:rank} "}, "{} ")],
    ids=["off", "template"],
)
def test_each_rank_is_shown_by_itself_where_that_is_wanted(
    run: Run, capfd: pytest.CaptureFixture[str], more: dict[str, Any], own: str
) -> None:
    run.script(SAYING, 3, tee=dict.fromkeys(range(3), Std.ALL), **more)
    out, err = shown(capfd)
    lines = [own.format(rank) + text for rank in range(3) for text in ("ready", f"I am {rank}")]
    assert sorted(out) == sorted(lines)
    assert sorted(err) == [f"{own.format(rank)}warning" for rank in range(3)]


# Ends


def test_process_left_behind_is_reported(run: Run) -> None:
    outcome = run.program("sh", "-c", "sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done")
    assert outcome.exit_code == 0
    (leftover,) = run.result["attempts"][0]["leftovers"]
    assert leftover["killed"]
    assert f"a worker left process {leftover['pid']} behind (sleep 1000); it was killed" in run.text


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


def test_directory_that_cannot_be_made_is_one_message(run: Run) -> None:
    run.write("file", "")
    path = str(run.root / "file" / "run")
    outcome = run.script("", log_dir=path)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert run.text == f"lllaunch: '{path}': Not a directory\n"


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


def test_samples_say_what_each_worker_does(run: Run) -> None:
    outcome = run.script(
        """
        import os, time
        path = "run/samples.jsonl"
        memory = bytearray(64 << 20) if os.environ["RANK"] == "1" else None
        while not os.path.exists(path) or open(path).read().count("\\n") < 3:
            print("x" * 99, flush=True)
            time.sleep(0.05)
        """,
        nproc=2,
        samples=1.0,
    )
    assert outcome.state == "succeeded", run.text
    lines = [json.loads(each) for each in (run.path / "samples.jsonl").read_text().splitlines()]
    assert {line["attempt"] for line in lines} == {0}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    # one may start later than the other, or end sooner
    small, large = (
        [line["ranks"][rank] for line in lines if rank in line["ranks"]] for rank in ("0", "1")
    )
    assert max(each["rss"] for each in large) > (32 << 20) + min(each["rss"] for each in small)
    assert max(each["cpu"] for each in small) > 0
    assert max(each["output"] for each in small) > 0
    assert last_sample(str(run.path)) == {**lines[-1], "gpus": {}}
    assert not run.events("Sample")


def test_bug_of_ours_is_told_and_still_leaves_a_result(run: Run) -> None:
    def targets(facts: Any) -> Program:
        raise KeyError("a bug")

    outcome = run(Entrypoint("program", "x", "x"), 1, targets=targets)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert run.text.startswith("lllaunch: internal error\n  Traceback (most recent call last):\n")
    assert run.result["state"] == "error"
