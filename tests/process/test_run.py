"""`execute` with real workers: files, causes, exit codes and what the user reads."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from lllaunch.console.console import Console
from lllaunch.run.directory import RunDirectory
from lllaunch.run.execute import execute
from lllaunch.run.samples import last_sample
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import Program, Script
from lllaunch.spec import ConsolePolicy, Entrypoint, LaunchSpec, RestartPolicy
from lllaunch.std import Std
from lllaunch.workers import tail

pytestmark = pytest.mark.measured

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
    work = run.root / "work.py"
    assert run.text.partition("(exit code 3)\n")[2] == dedent(
        f"""
          Root cause: rank 1 (attempt 0) raised ValueError: bad batch

            Traceback (most recent call last):
              File "{work}", line 4, in <module>
                raise ValueError("bad batch")
            ValueError: bad batch

          The other workers:
            ranks 0, 2  ended by the launcher (SIGTERM) after the root cause

          Logs: run/attempt_0
        """
    ).replace("\n", "\n  ").removesuffix("  ").replace("\n  \n", "\n\n").replace("  \n", "\n")


def test_status_of_a_program_shows_the_end_of_its_stderr(run: Run) -> None:
    outcome = run.program("sh", "-c", "seq 30 >&2; echo no such option >&2; exit 9")
    assert outcome.exit_code == 3
    assert run.result["root_cause"]["cause"] == {
        "type": "ExitedNonZero",
        "text": "exited with status 9",
        "exitcode": 9,
    }
    lines = run.text.splitlines()
    start = lines.index("    The last 20 lines of its stderr, run/attempt_0/0/stderr.log:")
    assert lines[start + 1] == "    | 12"
    assert lines[start + 20] == "    | no such option"


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


def test_signal_to_the_launcher_is_forwarded_and_decides_the_exit_code(run: Run) -> None:
    outcome = run.script(
        """
        import os, signal, sys
        os.kill(int(sys.argv[1]), signal.SIGTERM)
        signal.pause()
        """,
        args=(str(os.getpid()),),
    )
    assert (outcome.state, outcome.exit_code, outcome.signum) == ("signalled", 143, 15)
    assert run.fates() == ["ended"]
    assert run.result["signal"] == "SIGTERM"
    assert run.result["attempts"][0]["state"] == "stopped"
    assert "SIGTERM received, forwarded to 1 worker; SIGKILL follows in 1 min" in run.text
    assert "lllaunch: ended by SIGTERM after " in run.text
    assert "    rank 0  ended by the launcher (SIGTERM)\n" in run.text


def test_second_signal_kills(run: Run) -> None:
    outcome = run.script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: os.kill(int(sys.argv[1]), signal.SIGTERM))
        os.kill(int(sys.argv[1]), signal.SIGTERM)
        while True: time.sleep(0.02)  # not pause(): a signal just before it would be slept over
        """,
        args=(str(os.getpid()),),
    )
    assert outcome.exit_code == 143
    assert run.result["attempts"][0]["workers"][0]["signals_sent"] == ["SIGTERM", "SIGKILL"]
    assert "lllaunch: SIGTERM again, killing 1 worker\n" in run.text


def test_end_of_the_grace_period_kills(run: Run) -> None:
    run.script(
        """
        import os, signal, time
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("deaf", "w").close()
            time.sleep(1000)
        while not os.path.exists("deaf"): time.sleep(0.01)
        raise SystemExit(1)
        """,
        nproc=2,
        grace_period=0.2,
    )
    assert "the grace period is over, killing 1 worker" in run.text
    assert (
        "    rank 0  ended by the launcher (SIGTERM then SIGKILL) after the root cause\n"
        in run.text
    )


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


def test_program_that_is_not_executable(run: Run) -> None:
    path = run.write("plain", "text")
    outcome = run.program(path)
    assert outcome.exit_code == 3
    (told,) = re.findall(
        r"rank 0 \(attempt 0\) could not be started: '(.*)': Permission denied", run.text
    )
    # a long path is shortened
    assert path.startswith(told.partition("...")[0])
    assert path.endswith(told.rpartition("...")[2])


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


def test_targets_take_the_place_of_the_entrypoint(run: Run) -> None:
    path = run.write("other.py", "import sys; print(sys.argv[1:])")

    def targets(facts: Any) -> Script:
        return Script(path, (facts["rank"], facts["attempt"]))

    entrypoint = Entrypoint("function", "", "app")
    outcome = run(entrypoint, 2, targets=targets)
    assert outcome.exit_code == 0, run.text
    assert (run.path / "attempt_0/1/stdout.log").read_text() == "['1', '0']\n"


def test_spawner_that_is_given_stays_open(run: Run) -> None:
    with Spawner.prestart() as spawner:
        pid = spawner.pid
        for _ in range(2):
            assert run.script("import sys; sys.exit(0)", spawner=spawner).exit_code == 0
        script = "import os; assert os.environ['TORCHELASTIC_RESTART_COUNT'] == '2'"
        assert run.script(script, max_restarts=2, spawner=spawner).exit_code == 0
        assert spawner.dead is None
        assert spawner.pid == pid


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


def test_nothing_is_said_of_a_quiet_run_in_which_all_goes_well(run: Run) -> None:
    assert run.script("print('mine')", console=ConsolePolicy(quiet=True)).exit_code == 0
    assert run.text == ""
    assert run.script("import sys; sys.exit(7)", console=ConsolePolicy(quiet=True)).exit_code == 3
    assert run.text.startswith("lllaunch: FAILED")


# What the console shows of several workers

SAYING = """
import os, sys
print("ready")
print("I am", os.environ["RANK"])
print("warning", file=sys.stderr)
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


def test_a_prefix_that_is_given_is_shown_of_one_rank_too(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run.script(SAYING, tee={0: Std.ALL}, log_line_prefix="<${worker:rank}> ")
    assert shown(capfd) == [["<0> ready", "<0> I am 0"], ["<0> warning"]]


@pytest.mark.parametrize(
    ("more", "together"),
    [
        ({}, "[default 0-2]:"),
        ({"log_line_prefix": "${worker:local_rank}> ", "collapse": True}, "0-2> "),
    ],
    ids=["default", "template"],
)
def test_what_several_ranks_say_is_shown_once(
    run: Run,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, Any],
    together: str,
) -> None:
    # however far apart they say it
    monkeypatch.setattr(tail, "_HELD_S", 1000.0)
    assert run.script(SAYING, 3, tee=dict.fromkeys(range(3), Std.ALL), **more).exit_code == 0
    own = "{}> " if more else "[default{}]:"
    out, err = shown(capfd)
    assert out[0] == f"{together}ready"
    assert sorted(out[1:]) == [f"{own.format(rank)}I am {rank}" for rank in range(3)]
    assert err == [f"{together}warning"]
    for rank in range(3):
        log = run.path / "attempt_0" / str(rank) / "stdout.log"
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


@pytest.mark.parametrize("handled", [(signal.SIGTERM, signal.SIGHUP), (signal.SIGUSR1,)])
def test_signals_while_the_end_is_written_come_when_it_is(
    run: Run, handled: tuple[signal.Signals, ...]
) -> None:
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
        outcome = run.script("", build=at_the_end, signals=handled)
    finally:
        for signum, former in before.items():
            signal.signal(signum, former)
    assert outcome.state == "succeeded"
    assert came == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    assert "succeeded in" in run.text


def test_directory_in_use_is_refused_with_2(run: Run) -> None:
    with RunDirectory.claim(str(run.path)):
        outcome = run.script("")
    assert (outcome.state, outcome.exit_code) == ("error", 2)
    assert "is in use by another run (pid " in run.text
    assert os.listdir(run.path) == [".lllaunch.lock"]


def test_directory_that_cannot_be_made_is_one_message(run: Run) -> None:
    run.write("file", "")
    path = str(run.root / "file" / "run")
    outcome = run.script("", log_dir=path)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert run.text == f"lllaunch: '{path}': Not a directory\n"


@pytest.mark.parametrize("name", ["with space", "ünï→cødé", "per%cent", "new\nline", "quo'te"])
def test_hostile_directories(run: Run, name: str) -> None:
    path = run.root / name
    outcome = run.script("import sys; sys.exit(4)", log_dir=str(path))
    assert outcome.exit_code == 3
    assert json.loads((path / "result.json").read_text())["exit_code"] == 3
    logs = [line for line in run.text.splitlines() if line.startswith("  Logs: ")]
    shown = f"{name}/attempt_0"
    assert logs == [f"  Logs: {shown if shown.isprintable() else repr(shown)}"]


def test_full_disk_while_recording_warns_once_and_ends_in_an_error(run: Run) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        outcome = run.program("true", nproc=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    lines = run.text.splitlines()
    assert (
        lines.count("lllaunch: warning: '{}': File too large".format(run.path / "events.jsonl"))
        == 1
    )
    assert "lllaunch: '{}': File too large".format(run.path / "result.json") in lines
    assert not (run.path / "result.json").exists()
    assert "Traceback" not in run.text


def test_samples_say_what_each_worker_does(run: Run) -> None:
    outcome = run.script(
        """
        import os, subprocess, sys, time
        end = time.monotonic() + 5
        if os.environ["RANK"] == "1":
            # most of the work is done below it
            busy = "x = bytearray(64 << 20)\\nwhile True: pass"
            child = subprocess.Popen([sys.executable, "-c", busy])
        while time.monotonic() < end:
            if os.environ["RANK"] == "0":
                print("x" * 99, flush=True)
                with open("/dev/zero", "rb") as zeros, open("/dev/null", "wb") as null:
                    null.write(zeros.read(1 << 20))
            time.sleep(0.1)
        if os.environ["RANK"] == "1":
            child.kill()
            child.wait()
        """,
        nproc=2,
        samples=1.0,
    )
    assert outcome.state == "succeeded", run.text
    lines = [json.loads(each) for each in (run.path / "samples.jsonl").read_text().splitlines()]
    assert len(lines) >= 2
    assert {line["attempt"] for line in lines} == {0}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    # one may start later than the other, or end sooner
    idle, busy = (
        [line["ranks"][rank] for line in lines if rank in line["ranks"]] for rank in ("0", "1")
    )
    assert max(each["cpu"] for each in busy) > 2 * min(each["cpu"] for each in idle)
    assert max(each["rss"] for each in busy) > (64 << 20) + min(each["rss"] for each in idle)
    assert max(each["read"] for each in idle) > 1 << 20
    assert max(each["written"] for each in idle) > 1 << 20
    assert idle[-1]["output"] > 0
    assert last_sample(str(run.path)) == {**lines[-1], "gpus": {}}
    assert not run.events("Sample")


def test_a_run_that_is_over_at_once_leaves_no_samples(run: Run) -> None:
    run.program("true", samples=1.0)
    assert not (run.path / "samples.jsonl").exists()


def test_samples_that_cannot_be_written_harm_nothing(run: Run) -> None:
    (run.path / "samples.jsonl").mkdir(parents=True)
    outcome = run.program("sleep", "2.5", samples=1.0)
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    where = run.path / "samples.jsonl"
    assert run.text.count(f"lllaunch: warning: '{where}': Is a directory") == 1


def test_no_samples_are_taken_while_a_restart_is_waited_for(run: Run) -> None:
    outcome = run.script(
        """
        import os, sys, time
        time.sleep(1.5)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
        """,
        samples=1.0,
        max_restarts=1,
        restart=RestartPolicy(delay=3.0),
    )
    assert outcome.state == "succeeded", run.text
    lines = [json.loads(each) for each in (run.path / "samples.jsonl").read_text().splitlines()]
    assert [line["attempt"] for line in lines] == sorted(line["attempt"] for line in lines)
    assert {line["attempt"] for line in lines} == {0, 1}
    (pause,) = run.events("Pause")
    again = run.events("StartWorkers")[-1]
    between = [line for line in lines if pause["time_ns"] < line["time"] * 1e9 < again["time_ns"]]
    assert between == []


def test_failure_of_the_workers_counts_more_than_a_full_disk(run: Run) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        outcome = run.program("false", nproc=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert outcome.exit_code == 3
    assert "lllaunch: warning: '{}': File too large".format(run.path / "result.json") in run.text
    assert "Root cause: rank" in run.text


def test_bug_of_ours_is_told_and_still_leaves_a_result(run: Run) -> None:
    def targets(facts: Any) -> Program:
        raise KeyError("a bug")

    outcome = run(Entrypoint("program", "x", "x"), 1, targets=targets)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert run.text.startswith("lllaunch: internal error\n  Traceback (most recent call last):\n")
    assert run.result["state"] == "error"


def test_secrets_stay_out_of_files_and_messages(run: Run) -> None:
    secret = "sw0rdfish-0123"
    outcome = run.script(
        "import os; raise RuntimeError('login as ' + os.environ['API_TOKEN'])",
        env={"API_TOKEN": secret},
        sources={("env", "API_TOKEN"): "${oc.env:API_TOKEN}"},
    )
    assert outcome.exit_code == 3
    assert "login as ${oc.env:API_TOKEN}" in run.text
    assert secret not in run.text
    for name in ("plan.yaml", "events.jsonl", "result.json"):
        assert secret not in (run.path / name).read_text()


def test_error_file_of_torch_dates_and_explains_the_failure(run: Run) -> None:
    extra = {"py_callstack": "Traceback: deep", "timestamp": "1"}
    data = {"message": {"message": "RuntimeError: theirs", "extraInfo": extra}}
    run.write("data.json", json.dumps(data))
    run.script(
        """
        import os, shutil, sys
        shutil.copyfile("data.json", os.environ["TORCHELASTIC_ERROR_FILE"])
        sys.exit(1)
        """
    )
    assert "rank 0 (attempt 0) raised RuntimeError: theirs\n\n    Traceback: deep\n" in run.text
