"""How a Hydra app of ours ends: its exit code, and nothing printed after what matters.

`hydra.main` catches every exception of a job, prints it and exits with 1. So a job that did not
succeed raises `JobEnded`, which knows the exit code and is noted in a `Ledger`; what the process
exits with is read there when Hydra has had its way.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

from hydra.errors import CompactHydraException

from lllaunch.app.ci import tell_ci_error
from lllaunch.app.variables import without_variables
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode, for_signal

_FULL_ERROR = "HYDRA_FULL_ERROR"
_SIGINT = 2
# What argparse exits with when a flag is wrong; ours says with it that the launch config is.
_ARGPARSE_ERROR = 2


class AppEnded(SystemExit):
    """Ends a Hydra app with an exit code of ours; Hydra lets it pass."""


class JobEnded(CompactHydraException):
    """Ends a Hydra job that did not succeed.

    Attributes:
        exit_code: what the process shall exit with.
        error: what is still to be said; None where the failure report says it.
    """

    def __init__(self, exit_code: int, text: str, error: LaunchError | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.error = error


class Ledger:
    """What the jobs of one Hydra app ended with."""

    def __init__(self) -> None:
        self._first: JobEnded | None = None
        self._full_error = os.environ.get(_FULL_ERROR) == "1"
        self._stderr = contextlib.ExitStack()

    def begin(self) -> None:
        """A job begins: standard error is the real one again, which the tee waits for."""
        self._stderr.close()

    def note(self, ended: JobEnded, *, last: bool) -> JobEnded:
        """Notes what a failed job is about to raise; the first one decides the exit code.

        Args:
            ended: the exception.
            last: whether the app ends with this job, as it does without ``--multirun``.
        """
        from lllaunch.console.stand_in import patient_stderr  # noqa: PLC0415 - after a failure only

        self._first = self._first or ended
        # Hydra is about to write of the failed job, to a standard error that may be closed or full
        self._stderr.close()
        self._stderr.enter_context(patient_stderr())
        if last:
            # Hydra then hands the exception to its caller instead of printing it with advice on
            # stack traces, which would stand below the failure report.
            os.environ[_FULL_ERROR] = "1"
        return ended

    def run(self, app: Callable[[], object]) -> int | None:
        """Calls a Hydra app.

        Exceptions that are neither ours nor Hydra's way to exit pass through.

        Returns:
            What the process shall exit with; None if the app returned.
        """
        try:
            with self._stderr:
                app()
        except JobEnded as ended:
            self._show(ended)
            return ended.exit_code
        except KeyboardInterrupt:
            return for_signal(_SIGINT)
        except AppEnded as end:
            return int(end.code or 0)
        except SystemExit as end:
            return self._after_exit(end.code)
        # a sweeper that tolerates failed jobs returns as if there were none
        return self._first.exit_code if self._first else None

    def _after_exit(self, code: object) -> int:
        if self._first is not None and code == ExitCode.ERROR:
            return self._first.exit_code
        if code is None:
            return int(ExitCode.SUCCESS)
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            return int(ExitCode.ERROR)
        return int(ExitCode.ERROR) if code == _ARGPARSE_ERROR else code

    def _show(self, ended: JobEnded) -> None:
        if ended.error is None:
            return
        if self._full_error:
            traceback.print_exception(ended.error)
            return
        from lllaunch.console.console import Console  # noqa: PLC0415 - an app that fails to compose needs none

        console = Console()
        console.hide(without_variables)
        console.error(ended.error)
        tell_ci_error(without_variables(str(ended.error)))
