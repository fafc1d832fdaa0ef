from __future__ import annotations

import os
import signal

import hydra._internal.utils
import hydra.core.utils
import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException

from lllaunch.app.boundary import JobFailed, Ledger
from lllaunch.errors import ConfigError, Problem

WRONG = ConfigError((Problem("launch.tee", "'al'", "", expected="a mask"),))


@pytest.fixture(autouse=True)
def no_full_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)


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


def test_ctrl_c_after_the_run_does_not_change_what_it_ended_with() -> None:
    before = signal.getsignal(signal.SIGINT)
    ledger = Ledger()

    def app() -> None:
        ledger.over(3)
        signal.raise_signal(signal.SIGINT)

    try:
        assert ledger.run(app) == 3
    finally:
        ledger.restore()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        ends(Ledger(), ZeroDivisionError())


def test_a_failed_job_ends_the_app_with_its_code_and_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = Ledger()
    ended = ledger.note(JobFailed(2, str(WRONG), WRONG))
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert ends(ledger, ended) == 2
    assert capsys.readouterr().err == "lllaunch: launch.tee: expected a mask, got 'al'\n"


def test_a_failed_run_has_said_everything_in_its_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = Ledger()
    assert ends(ledger, ledger.note(JobFailed(3, "failed"))) == 3
    assert capsys.readouterr().err == ""


def test_the_user_who_wants_full_errors_gets_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ledger = Ledger()
    try:
        raise WRONG
    except ConfigError as error:
        ended = ledger.note(JobFailed(2, str(error), error))
    assert ends(ledger, ended) == 2
    assert "Traceback" in capsys.readouterr().err


def test_in_a_sweep_the_first_failed_job_decides() -> None:
    ledger = Ledger()
    ledger.note(JobFailed(3, "failed"))
    ledger.note(JobFailed(2, "wrong"))
    assert ends(ledger, JobFailed(3, "failed")) == 3


def test_a_sweeper_that_tolerates_failed_jobs_does_not_hide_them() -> None:
    ledger = Ledger()
    ledger.note(JobFailed(3, "failed"))
    assert ledger.run(lambda: None) == 3


def test_a_signal_ends_a_sweep_with_failed_jobs_as_a_signal() -> None:
    ledger = Ledger()
    ledger.note(JobFailed(3, "failed"))
    assert ends(ledger, SystemExit(143)) == 143


def test_a_failed_job_of_a_sweep_is_named_where_hydras_sweeper_gives_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ends(Ledger(), JobFailed(3, "lllaunch: job 2 failed (exit code 3)")) == 1
    assert capsys.readouterr().err == "lllaunch: job 2 failed (exit code 3)\n"


def test_what_hydra_cannot_compose_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(Ledger(), ConfigCompositionException("no 'x'")) == 1
    assert capsys.readouterr().err == "lllaunch: no 'x'\n"


def test_the_value_of_a_failed_job_is_raised_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    raised = JobFailed(3, "failed")

    def app() -> None:
        # as Hydra makes one for each job
        job = hydra.core.utils.JobReturn()
        job.return_value, job.status = raised, JobStatus.FAILED
        with pytest.raises(JobFailed, match="failed"):
            _ = job.return_value

    ledger = Ledger()
    assert ledger.run(app) is None
    assert capsys.readouterr().err == ""
    assert hydra.core.utils.JobReturn is JobReturn


def test_hydra_lets_pass_why_an_app_ends(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()

    def job() -> None:
        raise ledger.note(JobFailed(3, "the run in d failed"))

    assert ledger.run(lambda: hydra._internal.utils.run_and_report(job)) == 3
    assert capsys.readouterr().err == ""
