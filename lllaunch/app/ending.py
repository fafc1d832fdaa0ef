"""How a Hydra app of ours ends: its exit code, and its message with nothing before or after it.

Hydra prints a line of its own wherever somebody reads what a failed job returned, and again what
the job raised, with advice on stack traces below it; then it exits with 1. So the jobs of our apps
return a `QuietReturn`, and what ends an app comes to `Ledger.run` (`readable.reporting_readably`
leads it past Hydra), which says it and knows the exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException

from lllaunch.app.ci import tell_ci_error
from lllaunch.app.reasons import message_of
from lllaunch.app.variables import without_variables
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode, for_signal

_FULL_ERROR = "HYDRA_FULL_ERROR"
# What argparse exits with when a flag is wrong; ours says with it that the launch config is.
_ARGPARSE_ERROR = 2


class AppEnded(SystemExit):
    """Ends a Hydra app with an exit code of ours; Hydra lets it pass."""


class JobEnded(CompactHydraException):
    """Ends a Hydra job that did not succeed.

    Attributes:
        exit_code: what the process shall exit with.
        error: what is still to be said; None where the failure report has said it.
    """

    def __init__(self, exit_code: int, text: str, error: LaunchError | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.error = error


class QuietReturn(JobReturn):
    """What became of a job: Hydra's own, but reading the value of a failed one prints nothing."""

    @property
    def return_value(self) -> Any:
        """What the task function returned.

        Raises:
            Exception: what it raised.
        """
        if self.status is JobStatus.FAILED:
            raise self._return_value
        return super().return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


class Ledger:
    """What the jobs of one Hydra app ended with."""

    def __init__(self) -> None:
        self._first: JobEnded | None = None
        self._interrupt = signal.getsignal(signal.SIGINT)

    def note(self, ended: JobEnded) -> JobEnded:
        """Note what a failed job is about to raise; the first one decides the exit code."""
        self._first = self._first or ended
        return ended

    def over(self, code: int) -> None:
        """Let Ctrl-C from now on end what is left of the app, and not change its exit code.

        It stays so until `restore`.

        Args:
            code: what the app's only run ended with; it is in result.json.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and callable(self._interrupt):
            signal.signal(signal.SIGINT, lambda *_: _leave(code))

    def restore(self) -> None:
        """Let Ctrl-C do what it did before."""
        if threading.current_thread() is threading.main_thread() and callable(self._interrupt):
            signal.signal(signal.SIGINT, self._interrupt)

    def run(self, app: Callable[[], object]) -> int | None:
        """Call a Hydra app and say why it ended, if that has not been said.

        Exceptions that are neither ours nor Hydra's pass through; with HYDRA_FULL_ERROR=1 so do
        Hydra's.

        Returns:
            What the process shall exit with; None if the app returned.
        """
        try:
            app()
        except JobEnded as ended:
            return self._after_job(ended)
        except CompactHydraException as error:
            if wants_full_errors():
                raise
            _say(message_of(error))
            return int(ExitCode.ERROR)
        except KeyboardInterrupt:
            return for_signal(signal.SIGINT)
        except AppEnded as end:
            return int(end.code or 0)
        except SystemExit as end:
            return _after_exit(end.code)
        # a sweeper that tolerates failed jobs returns as if there were none
        return self._first.exit_code if self._first else None

    def _after_job(self, ended: JobEnded) -> int:
        if ended.error is not None and wants_full_errors():
            traceback.print_exception(ended.error)
        elif ended.error is not None:
            _say(ended.error)
        elif ended is not self._first:
            # a sweeper of Hydra's gives up for a job of lllaunch's launcher, which said so before
            # all that came since
            _say(str(ended).removeprefix("lllaunch: "))
        return self._first.exit_code if self._first else int(ExitCode.ERROR)


def wants_full_errors() -> bool:
    """Return whether the user asks Hydra for tracebacks."""
    return os.environ.get(_FULL_ERROR) == "1"


def _leave(code: int) -> NoReturn:
    raise AppEnded(code)


def _after_exit(code: object) -> int:
    if code is None:
        return int(ExitCode.SUCCESS)
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        return int(ExitCode.ERROR)
    return int(ExitCode.ERROR) if code == _ARGPARSE_ERROR else code


def _say(error: LaunchError | str) -> None:
    from lllaunch.console.console import Console  # noqa: PLC0415 - most apps end without

    console = Console()
    console.hide(without_variables)
    console.refused(str(error))
    tell_ci_error(error, without_variables)
