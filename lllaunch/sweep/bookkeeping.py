"""What a sweep's launcher writes into the journal, and what a job's end means to the scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import lllaunch.sweep.schedule as v
from lllaunch.errors import OutputError
from lllaunch.exit_codes import ExitCode
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    OverRecord,
    Record,
    Result,
    Skipped,
    StartedRecord,
)
from lllaunch.sweep.policy import by_signal, cause_of
from lllaunch.sweep.prepared import Answer, Broken, Prepared, record_of
from lllaunch.sweep.results import forget_result, read_result, result_of
from lllaunch.text import first_line

if TYPE_CHECKING:
    from lllaunch.sweep.journal import Journal
    from lllaunch.sweep.processes import JobProcess

_NEVER_STARTED = frozenset({v.JobState.NOT_RUN, v.JobState.CANCELLED})


class Books:
    """The journal, and what of each unsettled job is to go into it.

    Args:
        journal: of the sweep; None if none is kept.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._base = os.getcwd() if journal is None else os.path.dirname(journal.path)
        # Composed, and not in the journal yet.
        self._ahead: dict[int, ComposedRecord] = {}
        # Last in the journal, without the config.
        self._known: dict[int, ComposedRecord] = {}

    def composed(self, number: int, answer: Answer) -> None:
        """A job was composed; the journal gets that when the job starts, or is settled."""
        self._ahead[number] = record_of(number, answer, self._relative(answer.directory))

    def starts(self, job: JobProcess, answer: Prepared) -> None:
        """A job is let begin as soon as this returns.

        Raises:
            OutputError: the journal cannot be written; this can be tried again.
        """
        assert job.lease is not None
        self.composed(job.number, answer)
        self._keep_composed(job.number)
        if answer.directory:
            forget_result(os.path.join(self._base, answer.directory))
        if self._journal is not None:
            self._journal.append(StartedRecord(job.number, job.attempt, job.lease, job.pid))

    def ended(self, job: JobProcess, exit_code: int) -> v.JobEnded:
        """A job that held a lease ended.

        Args:
            job: which.
            exit_code: of its process.

        Returns:
            What the scheduler is told.
        """
        if not job.begun:
            return self._never_began(job, exit_code)
        assert isinstance(job.answer, Prepared)
        result, kind, unreadable = None, "", ""
        if job.answer.directory:
            try:
                run = read_result(os.path.join(self._base, job.answer.directory))
            except OutputError as error:
                # This job's affair: the others go on.
                run, unreadable = None, f"its result cannot be read: {error}"
            result = result_of(run)
            exit_code = _believed(exit_code, result)
            kind = run.cause_type if run is not None and exit_code else ""
        if result is None or result.exit_code != exit_code:
            cause = first_line(unreadable or job.why) if result is None else result.root_cause
            result = Result(_state(exit_code), exit_code, cause or _said_nothing(job, exit_code))
        self._keep(EndedRecord(job.number, job.attempt, result))
        why = result.root_cause if exit_code else ""
        return v.JobEnded(job.number, exit_code, cause_of(exit_code, kind), why)

    def _never_began(self, job: JobProcess, exit_code: int) -> v.JobEnded:
        """It was not composed for another attempt, or was killed then."""
        why = f"its process ended (exit code {exit_code}) while it was composed again"
        cause = cause_of(exit_code)
        if isinstance(job.answer, Broken):
            exit_code, why, cause = job.answer.exit_code, job.answer.why, None
        self._keep(
            EndedRecord(job.number, job.attempt, Result("error", exit_code, first_line(why)))
        )
        return v.JobEnded(job.number, exit_code, cause, why)

    def settled(self, end: v.Settle) -> None:
        """What became of a job is known."""
        if end.number in self._ahead and end.state is v.JobState.FAILED:
            # It cannot run.
            self._keep_composed(end.number)
            self._keep(
                EndedRecord(end.number, 0, Result("error", end.exit_code, first_line(end.why)))
            )
        elif end.number in self._ahead and end.state in _NEVER_STARTED:
            self._keep_composed(end.number)
            self._keep(Skipped(end.number, first_line(end.why) or end.state.value))
        self._ahead.pop(end.number, None)
        self._known.pop(end.number, None)

    def over(self, exit_code: int) -> None:
        """The sweep is over."""
        self._keep(OverRecord(exit_code))

    @property
    def error(self) -> OutputError | None:
        """Why the journal could not be written when that was last tried; None if it was."""
        return None if self._journal is None else self._journal.error

    @property
    def lost(self) -> bool:
        """Whether the journal cannot be written any more, whatever happens."""
        return self._journal is not None and self._journal.lost

    def flush(self) -> None:
        """Write down what could not be before.

        Raises:
            OutputError: it still cannot be.
        """
        if self._journal is not None:
            self._journal.flush()

    def leave(self) -> None:
        """In a forked job: the journal is the launcher's."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _keep_composed(self, number: int) -> None:
        record = self._ahead.pop(number)
        known = record._replace(config=None)
        if self._known.get(number) != known:
            self._keep(record)
            self._known[number] = known

    def _keep(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.keep(record)

    def _relative(self, directory: str) -> str:
        if not os.path.isabs(directory):
            return directory
        relative = os.path.relpath(directory, self._base)
        return directory if relative.split(os.sep)[0] == os.pardir else relative


def _believed(exit_code: int, result: Result | None) -> int:
    """Returns what a job ended with, by its process and by its result.json, as a resume sees it."""
    if result is None:
        return exit_code or int(ExitCode.ERROR)
    if result.succeeded:
        # all was done and said
        return 0
    if exit_code == 0:
        return result.exit_code or int(ExitCode.ERROR)
    return exit_code


def _said_nothing(job: JobProcess, exit_code: int) -> str:
    """The cause of a job that failed though its process ended well."""
    return "its process ended without a result" if job.exit_code == 0 and exit_code else ""


def _state(exit_code: int) -> str:
    if exit_code == 0:
        return "succeeded"
    return "signalled" if by_signal(exit_code) else "error"
