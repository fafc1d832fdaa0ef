"""The end of a run: what is written is true, and signals do not keep it from being written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.launching import Launcher, text_of, until


def test_a_run_has_succeeded_though_the_spawner_dies_while_leftovers_are_ended(
    tmp_path: Path,
) -> None:
    node = {"entrypoint": "sh", "args": ["-c", "sleep 100 & exit 0"], "nproc": 2}
    launcher = Launcher(tmp_path, node)
    events = tmp_path / "run" / "events.jsonl"
    until(lambda: "SweepLeftovers" in text_of(events), "the end of all workers")
    os.kill(launcher.spawner(), signal.SIGKILL)
    done = launcher.finish()
    assert "SpawnerLost" in text_of(events), "the spawner was killed too late"
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
