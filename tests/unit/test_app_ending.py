from __future__ import annotations

import os
import sys

import pytest

from lllaunch.app.ending import JobEnded, Ledger
from lllaunch.errors import ConfigError, Problem

WRONG = ConfigError((Problem("launch.tee", "'al'", "is not a mask"),))


@pytest.fixture(autouse=True)
def full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # set first, so that what the ledger sets is undone
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")


def ends(ledger: Ledger, what: BaseException) -> int | None:
    def app() -> None:
        raise what

    return ledger.run(app)


def test_an_app_that_returns_has_no_exit_code() -> None:
    assert Ledger().run(lambda: None) is None


@pytest.mark.parametrize(
    ("code", "expected"), [(None, 0), (0, 0), (1, 1), (2, 1), (3, 3), (130, 130)]
)
def test_an_exit_keeps_its_code_but_argparses_2(code: int | None, expected: int) -> None:
    assert ends(Ledger(), SystemExit(code)) == expected


def test_an_exit_with_a_text_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(Ledger(), SystemExit("what went wrong")) == 1
    assert capsys.readouterr().err == "what went wrong\n"


def test_ctrl_c_is_130() -> None:
    assert ends(Ledger(), KeyboardInterrupt()) == 130


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        ends(Ledger(), ZeroDivisionError())


def test_a_failed_job_ends_the_app_with_its_code_and_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = Ledger()
    ended = ledger.note(JobEnded(2, str(WRONG), WRONG), last=True)
    assert os.environ["HYDRA_FULL_ERROR"] == "1"
    assert ends(ledger, ended) == 2
    assert capsys.readouterr().err == "lllaunch: launch.tee: 'al' is not a mask\n"


def test_a_failed_run_has_said_everything_in_its_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = Ledger()
    assert ends(ledger, ledger.note(JobEnded(3, "failed"), last=True)) == 3
    assert capsys.readouterr().err == ""


def test_the_user_who_wants_full_errors_gets_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ledger = Ledger()
    try:
        raise WRONG
    except ConfigError as error:
        ended = ledger.note(JobEnded(2, str(error), error), last=True)
    assert ends(ledger, ended) == 2
    assert "Traceback" in capsys.readouterr().err


def test_in_a_sweep_the_first_failed_job_decides_after_hydras_exit() -> None:
    ledger = Ledger()
    ledger.note(JobEnded(3, "failed"), last=False)
    ledger.note(JobEnded(2, "wrong"), last=False)
    assert os.environ["HYDRA_FULL_ERROR"] == "0"
    assert ends(ledger, SystemExit(1)) == 3


def test_a_sweeper_that_tolerates_failed_jobs_does_not_hide_them() -> None:
    ledger = Ledger()
    ledger.note(JobEnded(3, "failed"), last=False)
    assert ledger.run(lambda: None) == 3


def test_a_signal_ends_a_sweep_with_failed_jobs_as_a_signal() -> None:
    ledger = Ledger()
    ledger.note(JobEnded(3, "failed"), last=False)
    assert ends(ledger, SystemExit(143)) == 143


def test_hydra_prints_the_message_of_a_failed_job_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hydra._internal.utils import run_and_report

    # coverage's tracer is a debugger to Hydra
    monkeypatch.setattr(sys, "gettrace", lambda: None)

    def job() -> None:
        raise JobEnded(3, "the run in d failed")

    with pytest.raises(SystemExit):
        run_and_report(job)
    shown = capsys.readouterr().err
    assert "the run in d failed" in shown
    assert "Traceback" not in shown
