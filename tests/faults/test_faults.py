"""The harness itself, and as many of its scenarios as fit into a minute."""

from __future__ import annotations

import json
import os
import secrets
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import CHECKS, violations
from tests.faults.scenarios import DAMAGES, KIN, Act, Fault, Scenario, scenario
from tests.faults.worker import pieces
from tests.faults.world import Injected, Launched, Observed, Resumed, damaged

ROOT = Path(__file__).parents[2]
# Another one each time; the processes of pytest-xdist have the same.
SEED = (
    os.environ.get("FAULTS_SEED")
    or os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:8]
    or secrets.token_hex(4)
)


# Scenarios


def test_the_same_seed_and_number_give_the_same_scenario() -> None:
    first, again, other = ([scenario(seed, n) for n in range(50)] for seed in "aab")
    assert first == again != other


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for n in range(3000) for fault in scenario("a", n).faults}
    targets = ("launcher", "spawner", "worker", *KIN)
    names = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT")
    expected = {f"{name} {target}" for name in names for target in targets}
    expected |= {f"{name} twice launcher" for name in ("SIGTERM", "SIGINT")}
    expected |= {f"journal {how}" for how in DAMAGES}
    expected |= {"disk full", "directory removed", "directory renamed", "journal removed"}
    expected |= {"console closed", "console blocked", "no descriptors", "no processes"}
    assert expected | {"second launcher"} <= drawn


def test_every_damage_changes_a_journal() -> None:
    journal = b'{"time": "x", "time_ns": 1795312900402501206, "type": "ended"}\n' * 4
    for how in DAMAGES:
        assert all(damaged(journal, how, where / 10) != journal for where in range(10)), how


# Checks: each finds what it is for, and nothing where all is well


class Made:
    """What would be observed of a run with one worker, on which all went well."""

    def __init__(self, root: Path) -> None:
        self.run = root / "project" / "run"
        self.log = self.run / "attempt_0" / "0" / "stdout.log"
        self.log.parent.mkdir(parents=True)
        (root / "ledger").mkdir()
        act = Act(lines=2, errors=1, width=3)
        launch = {"nproc": 1, "tee": "all"}
        what = Scenario("s", 0, "run", acts={"*": ((act,),)}, launch=launch)
        key = "a.0.0.77"
        own: dict[str, Any] = {"pid": 77, "key": key}
        self.begin = {**own, "what": "start", "time": 1_000, "job": "a", "attempt": 0, "rank": 0}
        self.begin["log"] = str(self.log)
        self.end = {**own, "what": "end", "time": 2_000, "code": 0}
        out, err = (b"".join(pieces(vars(act), key, stream)) for stream in ("out", "err"))
        self.log.write_bytes(out)
        self.log.with_name("stderr.log").write_bytes(err)
        counters = struct.pack("<qq", len(out), len(err))
        (root / "ledger" / f"bytes-{key}").write_bytes(counters)
        shown = b"".join(b"[default0]:" + line for line in (out + err).splitlines(True))
        self.launcher = Launched("a", 50, self.run, status=0, ended=10_000)
        self.launcher.shown = {"out": bytearray(shown)}
        self.seen = Observed(what, root, self.run)
        self.seen.entries = [self.begin, self.end]
        self.seen.launched = [self.launcher]
        self.seen.bystanders = [(True, [])]
        self.worker = {"rank": 0, "pid": 77, "fate": "succeeded", "exitcode": 0}
        tried = [{"attempt": 0, "workers": [self.worker]}]
        self.result = {"state": "succeeded", "exit_code": 0, "root_cause": None, "attempts": tried}
        (self.run / "events.jsonl").write_text('{"type": "Begin"}\n')

    def found(self) -> set[str]:
        (self.run / "result.json").write_text(json.dumps(self.result))
        return {check for check, _ in violations(self.seen)}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_nothing_is_found_where_all_is_well(made: Made) -> None:
    assert made.found() == set()


def _lost_signal(made: Made) -> None:
    fault = Fault("signal", "worker", 0.0, "launcher", "SIGTERM")
    made.seen.injected.append(Injected(fault, 1_500, pid=50, running=(made.end["key"],)))
    made.end["time"] = 9_000_000_000


def _split_line(made: Made) -> None:
    text = bytes(made.launcher.shown["out"])
    made.launcher.shown["out"] = bytearray(text[:20] + b"lllaunch: hello\n" + text[20:])


def _taken(lock: str) -> Callable[[Made], None]:
    entry = {"what": "taken", "pid": 77, "key": "a.0.0.77", "lock": lock, "holder": "b"}
    return lambda made: made.seen.entries.append(entry)


def _traceback(made: Made) -> None:
    made.launcher.shown["out"] += b'  File "/x/lllaunch/run/execute.py", line 3, in f\n'
    made.launcher.shown["out"] += b"lllaunch: internal error\n"


SPOILT: list[tuple[str, Callable[[Made], object]]] = [
    ("ends", lambda made: made.seen.hung.append("a")),
    ("alive", lambda made: made.seen.left.append("daemon 78 (S): sleep")),
    ("others", lambda made: made.seen.bystanders.append((False, []))),
    ("code", lambda made: setattr(made.launcher, "status", 3)),
    ("code", _lost_signal),
    ("result", lambda made: made.worker.update(exitcode=3)),
    ("bytes", lambda made: os.truncate(made.log, 5)),
    ("lines", _split_line),
    ("records", lambda made: (made.run / "events.jsonl").write_text('{"type": "Beg\n{}\n')),
    ("once", _taken("job-a.0")),
    ("leases", _taken("gpu-x")),
    ("message", _traceback),
    ("debris", lambda made: made.seen.debris.append("/tmp/left")),
]


@pytest.mark.parametrize(("check", "spoil"), SPOILT)
def test_what_is_spoilt_is_found(made: Made, check: str, spoil: Callable[[Made], object]) -> None:
    spoil(made)
    assert check in made.found()


def test_every_check_is_shown_to_find_something() -> None:
    assert {check for check, _ in SPOILT} == {*CHECKS}


def test_a_job_that_had_finished_and_runs_again_is_found(made: Made) -> None:
    made.seen.scenario = replace(made.seen.scenario, jobs=(0, 1))
    journal = b'{"type": "composed", "job": 1}\n{"type": "star\0\0"}\n'
    made.seen.resumed = [Resumed(0, 2, journal, finished=(1,))]
    (made.run / "sweep.json").write_text(json.dumps({"exit_code": 0, "jobs": []}))
    made.seen.entries.append({**made.begin, "job": "1"})
    made.seen.injected = [Injected(Fault("damage", "start", 0.0, name="cut"), 1_500)]
    assert "once" in made.found()
    made.seen.resumed = [Resumed(0, 2, b'{"type": "over"}\n', finished=(1,))]
    assert "once" not in made.found(), "for this journal the job was never there"


# Faults


def perform(*options: str, again: str) -> None:
    """Perform scenarios; show how to do so again, whatever comes of it."""
    command = [sys.executable, "-m", "tests.faults", "--jobs", "1", *options]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    print(again, done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, f"again: {again}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_by_faults(part: int) -> None:
    """More of them: ``make faults``."""
    again = f"FAULTS_SEED={SEED} python -m pytest tests/faults -k broken_by_faults"
    perform("--seed", f"{SEED}-{part}", "--seconds", "15", again=again)


@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_no_promise_is_broken_by_the_same_few_faults() -> None:
    perform("--seed", "smoke1930", "-n", "2", again="python -m tests.faults --seed smoke1930 -n 2")
