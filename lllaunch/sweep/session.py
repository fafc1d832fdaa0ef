"""All that a sweep keeps in its directory, from the first batch of jobs to the last.

A sweeper may ask for several batches of jobs, one after another, in one launcher: the directory is
held and the journal is open over all of them. The jobs of a resumed sweep are compared with those
of the journal before anything is written: a refused resume leaves all as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lllaunch.errors import ConfigError, OutputError, Problem
from lllaunch.run.files import naming
from lllaunch.run.lock import PATIENCE
from lllaunch.sweep.directory import JOURNAL, SUMMARY, SweepDirectory
from lllaunch.sweep.history import SweepHistory, summary_of, with_others, write_summary
from lllaunch.sweep.journal import EndedRecord, Header, Journal, Resumed
from lllaunch.sweep.results import read_results
from lllaunch.sweep.resume import OldJob, RunAgain, Skip, plan_resume

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from lllaunch.sweep.journal import JournalEntry
    from lllaunch.sweep.resume import NewJob, ResumePlan

_RESUME = "hydra.launcher.resume"
# sweep.json of a sweep of many batches takes one part in so many of the time.
_RATIO = 50


JobToCompare: TypeAlias = tuple[int, int, str]
"""A job that has finished: its place in the batch, its number, its directory."""


class Batch(NamedTuple):
    """Some jobs of a sweep, in the order in which the sweeper asked for them.

    Attributes:
        numbers: the number of each job.
        skipped: those that have finished in an earlier launcher and do not run, by number.
        directories: where the result.json of those is that run again, as the journal has it
            (relative to the sweep's directory, or absolute), by number. One that never had a
            directory is not in it.
    """

    numbers: Sequence[int]
    skipped: Mapping[int, OldJob]
    directories: Mapping[int, str]


class SweepSession:
    """A sweep's directory, held and written to by this launcher until `close`; made by `begin`.

    Jobs that are forked hold the directory with it, until they end.

    Args:
        directory: held.
        journal: open.
        resumed: what goes into the journal of a resumed sweep first, None for a new one.
        history: what `journal` tells of.

    Attributes:
        path: the sweep's directory, absolute.
        journal: what its records go to.
        resumed: whether the sweep was begun by another launcher.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        journal: Journal,
        resumed: Resumed | None,
        history: SweepHistory,
    ) -> None:
        self.path = directory.path
        self.journal = journal
        self.resumed = resumed is not None
        self._directory = directory
        # to be written as soon as the jobs are known to be the same; then None
        self._resumption = resumed
        self._history = history
        self._write_at = 0.0

    @classmethod
    def begin(
        cls,
        directory: str,
        *,
        command: Sequence[str],
        version: str,
        resume: bool = False,
        say: Callable[[str], object] | None = None,
        patience: float = PATIENCE,
    ) -> Self:
        """Takes a sweep's directory, and begins a sweep in it or goes on with one.

        Args:
            directory: of the sweep; made if need be. A relative path counts from the working
                directory.
            command: the overrides of the command line, redacted.
            version: of this launcher.
            resume: whether to go on with the sweep that is there. The journal is not changed
                before `plan` has found nothing to refuse.
            say: gets a line for people if a new sweep begins where there is one, and if jobs of a
                killed launcher have to be waited for.
            patience: how long that may take, seconds.

        Raises:
            ConfigError: it is in use; or cannot be resumed: there is no sweep, it is damaged, or of
                another version.
            OutputError: it cannot be made, locked, read or written.
        """
        path, given = os.path.abspath(directory), tuple(command)
        if resume:
            # else it would be made by claiming it
            _expect_sweep(path)
            held = SweepDirectory.claim(path, _RESUME, patience, say)
        else:
            held = SweepDirectory.claim(path, patience=patience, say=say)
        file, history = held.file(JOURNAL), SweepHistory()

        def tell(entry: JournalEntry) -> None:
            history.add(*entry)

        try:
            if resume:
                journal = Journal.open(file, tell=tell)
                return cls(held, journal, Resumed(version, given), history)
            former = held.set_aside()
            if former is not None and say is not None:
                say(
                    f"{path} holds a sweep already, which hydra.launcher.resume={path} would go "
                    f"on with; a new one begins, and the journal of that one is now {former}"
                )
            journal = Journal.create(file, Header(_id_of(path), version, given), tell=tell)
            return cls(held, journal, None, history)
        except BaseException:
            held.release()
            raise

    def plan(
        self,
        jobs: Sequence[Sequence[str]],
        first_number: int,
        compose: Callable[[Sequence[JobToCompare]], Generator[NewJob, None, None]],
    ) -> Batch:
        """Gives the jobs of a batch their numbers; of a resumed sweep, finds those of before.

        Args:
            jobs: the overrides of each job, redacted as the journal's are. They are looked at only
                in a resumed sweep, and then more than once.
            first_number: that of the first job, as the sweeper counts.
            compose: composes the jobs that have finished, for comparison, one after another; their
                directories are those that the journal has.

        Raises:
            ConfigError: the config of a job that has finished has changed, or what ``compose``
                raises. Nothing has been written then.
            OutputError: a job's result cannot be read, or the journal cannot be written.
            RuntimeError: the sweep was resumed with another batch before. What a sweeper asks for
                next may follow from results of earlier jobs: there is nothing to compare with.
        """
        if not self.resumed:
            return Batch(range(first_number, first_number + len(jobs)), {}, {})
        if self._resumption is None:
            raise RuntimeError("a sweep is resumed with one batch of jobs")
        histories = self._history.jobs.values()
        results = read_results(self.path, histories)
        plan = plan_resume(
            [OldJob(history, results.get(history.job)) for history in histories],
            jobs,
            lambda finished: compose([_to_compare(*each) for each in finished]),
            taken=self._directory.numbers(),
            first=first_number,
            config_of=self.journal.config_of,
        )
        self.journal.append(self._resumption)
        self._resumption = None
        self._note_ends(plan)
        return _batch_of(plan)

    def _note_ends(self, plan: ResumePlan) -> None:
        """Writes down what the launcher that ran the jobs had not come to."""
        for job in plan.jobs:
            if isinstance(job, Skip) and not job.old.journalled:
                assert job.old.result is not None
                self.journal.append(EndedRecord(job.number, job.old.history.retry, job.old.result))

    @property
    def locks(self) -> tuple[int, ...]:
        """Descriptors that hold the directory as long as somebody has them open."""
        return self._directory.locks

    def document(self) -> Mapping[str, Any]:
        """Returns what sweep.json holds, without the jobs that the sweep did not come to."""
        return summary_of(self._history, time.time_ns())

    def write(
        self,
        document: Mapping[str, Any],
        asked: Iterable[int] = (),
        overrides: Callable[[int], Sequence[str]] = lambda number: (),  # noqa: ARG005
    ) -> None:
        """Writes sweep.json.

        Args:
            document: as `document` made it.
            asked: numbers of all jobs. Those that the sweep did not come to are in sweep.json, too.
            overrides: returns those of a job, as the journal has them.

        Raises:
            OutputError: it cannot be written.
        """
        write_summary(self._directory.file(SUMMARY), with_others(document, asked, overrides))

    def write_now_and_then(
        self, asked: Iterable[int], overrides: Callable[[int], Sequence[str]]
    ) -> None:
        """Writes sweep.json after one of many batches, if that takes a small part of the time.

        Arguments as for `write`. An error is left to the `write` that follows the last batch.
        """
        began = time.monotonic()
        if began < self._write_at:
            return
        with contextlib.suppress(OutputError):
            self.write(self.document(), asked, overrides)
        now = time.monotonic()
        self._write_at = now + _RATIO * (now - began)

    def close(self) -> None:
        """Closes the journal and gives the directory back; idempotent."""
        self.journal.close()
        self._directory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _to_compare(index: int, old: OldJob) -> JobToCompare:
    return index, old.number, old.history.directory


def _batch_of(plan: ResumePlan) -> Batch:
    return Batch(
        tuple(job.number for job in plan.jobs),
        {job.number: job.old for job in plan.jobs if isinstance(job, Skip)},
        {
            job.number: job.old.history.directory
            for job in plan.jobs
            if isinstance(job, RunAgain) and job.old.history.directory
        },
    )


def _expect_sweep(path: str) -> None:
    """Raises unless a directory is there and has a journal in it."""
    missing = (FileNotFoundError, NotADirectoryError)
    with naming(path):
        try:
            message = "" if stat.S_ISDIR(os.stat(path).st_mode) else "is not a directory"
        except missing:
            message = "is not there"
        try:
            os.stat(os.path.join(path, JOURNAL))
        except missing:
            message = message or f"holds no sweep: there is no {JOURNAL} in it"
    if message:
        hint = "give the directory of a sweep, such as multirun/DATE/TIME"
        raise ConfigError((Problem(_RESUME, repr(path), message, hint),))


def _id_of(path: str) -> str:
    """Returns a sweep's name, made from the last two parts of its directory."""
    parts = [part for part in path.split("/") if part][-2:]
    return re.sub(r"[^\w.-]", "_", "-".join(parts)) or "sweep"
