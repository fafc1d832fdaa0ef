from __future__ import annotations

import os
import signal

import pytest
from hydra.errors import ConfigCompositionException

from lllaunch.app.boundary import JobFailed, Ledger
from lllaunch.errors import ConfigError, Diagnostic

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
