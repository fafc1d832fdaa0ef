"""What is around the run of an app: before it begins, where it is planned, how it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import ConfigCompositionException

from lllaunch.app.boundary import JobFailed, Ledger
from lllaunch.app.command_line import only_asks, prestarted
from lllaunch.app.planning import hydra_words
from lllaunch.config.plan import plan_node
from lllaunch.errors import ConfigError, Diagnostic
from tests.unit.launch_nodes import spec_of


@pytest.mark.parametrize("words", ["--cfg job", "--info", "--help", "-sc install=bash"])
def test_a_command_line_that_only_asks_starts_no_spawner(words: str) -> None:
    assert only_asks(words.split())
    with prestarted(words.split()) as spawner:
        assert spawner is None
    assert not only_asks(["-m", "a=1,2", "--config-name", "c"])


def test_without_room_for_a_process_it_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("lllaunch.spawner.client.Spawner.prestart", full)
    with prestarted([]) as spawner:
        assert spawner is None


def test_the_config_dir_is_read_from_the_command_line() -> None:
    assert hydra_words(["--config-dir", "a b"])[1] == "a b"
    assert hydra_words(["-cd", "x", "--config-dir", "y", "+exp=x"])[1] == "y"
    assert hydra_words(["--config-dir"])[1] is None


def test_config_path_counts_from_where_the_command_was_given() -> None:
    Path("mine").mkdir()
    mine = str(Path.cwd() / "mine")
    assert hydra_words(["--config-path", "mine", "a=1"])[0] == ["--config-path", mine, "a=1"]
    for other in ("pkg://mine", "nowhere", "a=1"):
        assert hydra_words(["-cp", other])[0] == ["-cp", other]


@pytest.mark.parametrize(
    ("own", "outer", "expected"),
    [
        ({}, {}, "/home/me"),
        ({}, {"PYTHONPATH": "/lib"}, "/home/me:/lib"),
        ({"PYTHONPATH": "/own"}, {"PYTHONPATH": "/lib"}, "/home/me:/own"),
    ],
)
def test_workers_elsewhere_import_from_where_the_command_was_given(
    own: dict[str, str], outer: dict[str, str], expected: str
) -> None:
    launch = {"entrypoint": "-m json.tool", "env": own}
    places: dict[str, Any] = {"runtime_cwd": "/home/me", "environ": outer}
    here = spec_of(launch, **places)
    assert here.derived_env == {}
    spec = spec_of(launch, **places, job_cwd="/run")
    assert (spec.cwd, spec.spawner_cwd) == ("/run", "/home/me")
    assert spec.env_of(0)["PYTHONPATH"] == expected
    assert plan_node(spec)["launch"] == {**plan_node(here)["launch"], "cwd": "/run"}


def test_a_program_elsewhere_needs_it_only_for_its_preloads() -> None:
    places = {"runtime_cwd": "/home/me", "environ": {}, "job_cwd": "/run"}
    assert spec_of(**places).derived_env == {}
    assert spec_of({"preload": "json"}, **places).derived_env == {"PYTHONPATH": "/home/me"}


WRONG = ConfigError((Diagnostic("mask", "launch.tee", "'al'", "", expected="a mask"),))


@pytest.fixture(autouse=True)
def no_full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)


def ends(ledger: Ledger, what: BaseException) -> int | None:
    def app() -> None:
        raise what

    return ledger.run(app)


@pytest.mark.parametrize(
    ("what", "expected", "said"),
    [
        (SystemExit(None), 0, ""),
        (SystemExit(3), 3, ""),
        # argparse's
        (SystemExit(2), 1, ""),
        (SystemExit("what went wrong"), 1, "what went wrong\n"),
        (KeyboardInterrupt(), 130, ""),
        (ConfigCompositionException("no 'x'"), 1, "lllaunch: no 'x'\n"),
        # where Hydra's sweeper gives up
        (JobFailed(3, "lllaunch: job 2 failed"), 1, "lllaunch: job 2 failed\n"),
    ],
)
def test_how_an_app_ends(
    what: BaseException, expected: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(Ledger(), what) == expected
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("full", [False, True])
def test_a_failed_job_ends_the_app_with_its_code_and_its_message(
    full: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if full:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ledger = Ledger()
    assert ("HYDRA_FULL_ERROR" in os.environ) is full
    assert ends(ledger, ledger.note(WRONG)) == 2
    said = capsys.readouterr().err
    if full:
        assert "Traceback" in said
    else:
        assert said == "lllaunch: launch.tee: expected a mask, got 'al' [mask]\n"


def test_in_a_sweep_the_first_failed_job_decides_but_for_a_signal() -> None:
    ledger = Ledger()
    ledger.note(JobFailed(3, "failed"))
    ledger.note(JobFailed(2, "wrong"))
    assert ends(ledger, JobFailed(3, "failed")) == 3
    # a sweeper that tolerates failed jobs does not hide them
    assert ledger.run(lambda: None) == 3
    assert ends(ledger, SystemExit(143)) == 143
