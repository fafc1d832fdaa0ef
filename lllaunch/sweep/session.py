"""All that a sweep keeps in its directory, from the first batch of jobs to the last.

A sweeper may ask for several batches of jobs, one after another, in one launcher: the directory is
held and the journal is open over all of them. The jobs of a resumed sweep are compared with those
of the journal before anything is written: a refused resume leaves all as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from msgspec.structs import replace

import lllaunch.sweep.schedule as v
from lllaunch.documents import differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, OutputError
from lllaunch.files import naming
from lllaunch.locks import PATIENCE, HeldDirectory, lock_directory
from lllaunch.run.directory import forget_result
from lllaunch.run.submission import forget_submission
from lllaunch.sweep.fingerprint import job_key, overrides_key
from lllaunch.sweep.history import (
    JobHistory,
    SweepHistory,
    read_result,
    read_results,
    result_of,
    summary_of,
    write_summary,
)
from lllaunch.sweep.journal import (
    JOURNAL,
    LOCK_NAME,
    SUMMARY,
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    OverRecord,
    PlannedRecord,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    read_configs,
)
from lllaunch.sweep.protocol import Prepared
from lllaunch.sweep.schedule import by_signal, cause_of
from lllaunch.text import first_line, spans
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from lllaunch.sweep.history import SweepResult
    from lllaunch.sweep.objective import Direction
    from lllaunch.sweep.pool import Lease

    Configs: TypeAlias = Mapping[int, Mapping[str, Any] | None]
    Compose: TypeAlias = Callable[
        [Sequence[tuple[int, JobHistory]]], Generator[Mapping[str, Any], None, None]
    ]


def set_aside(path: str) -> str | None:
    """Makes room for a new sweep: the journal of one that is there gets a number in its name.

    Raises:
        OutputError: it cannot be renamed.
    """
    stem, extension = os.path.splitext(os.path.join(path, JOURNAL))
    if not os.path.lexists(stem + extension):
        return None
    names = (f"{stem}.{number}{extension}" for number in itertools.count(1))
    former = next(name for name in names if not os.path.lexists(name))
    with naming(path):
        # first, so that a journal that is here always has the summary that is
        with contextlib.suppress(FileNotFoundError):
            summary = former.removesuffix(extension) + os.path.splitext(SUMMARY)[1]
            os.rename(os.path.join(path, SUMMARY), summary)
        os.rename(stem + extension, former)
    return former


@dataclass
class Batch:
    """Some jobs of a sweep, in the order in which the sweeper asked for them.

    ``labels``: their overrides, redacted. ``skipped``: those that have finished in an earlier
    launcher and do not run, by number.
    """

    labels: Sequence[Sequence[str]]
    numbers: Sequence[int]
    skipped: Mapping[int, JobHistory] = field(default_factory=dict)

    def index(self, number: int) -> int:
        """Return the place of a job among the others."""
        return self._places[number]

    @functools.cached_property
    def _places(self) -> Mapping[int, int]:
        return {number: place for place, number in enumerate(self.numbers)}

    def label(self, number: int) -> Sequence[str]:
        """Return the overrides of a job, redacted."""
        return self.labels[self.index(number)]

    def to_run(self) -> list[int]:
        """Return the numbers of the jobs that have not finished in an earlier launcher."""
        return [number for number in self.numbers if number not in self.skipped]


class SweepSession:
    """A sweep's directory, held and written to by this launcher until `close`; made by `begin`.

    Jobs that are forked hold the directory with it, until they end.

    ``resumed``: what goes into the journal of a resumed sweep first, None for a new one.
    """

    def __init__(
        self,
        directory: HeldDirectory,
        journal: Journal,
        resumed: Resumed | None,
        history: SweepHistory,
    ) -> None:
        self.path = directory.path
        self.journal = journal
        self.resumed = resumed is not None
        # descriptors that hold the directory as long as somebody has them open
        self.locks = directory.locks
        self._directory = directory
        # to be written as soon as the jobs are known to be the same; then None
        self._resumption = resumed
        self._history = history

    @classmethod
    def begin(
        cls,
        directory: str,
        *,
        command: Sequence[str],
        version: str,
        direction: Direction | None = None,
        slots: Lease | None = None,
        resume: bool = False,
        say: Callable[[str], object] | None = None,
        patience: float = PATIENCE,
    ) -> Self:
        """Takes a sweep's directory, and begins a sweep in it or goes on with one.

        ``directory``: of the sweep; made if need be. A relative path counts from the working
        directory. ``say``: gets a line for people if a new sweep begins where there is one, and if
        jobs of a killed launcher have to be waited for, at most ``patience`` seconds.

        Raises:
            ConfigError: it is in use; or cannot be resumed: there is no sweep, it is damaged, or of
                another version.
            OutputError: it cannot be made, locked, read or written.
        """
        path, given = os.path.abspath(directory), tuple(command)
        file, history = os.path.join(path, JOURNAL), SweepHistory()
        if resume and not os.path.lexists(file):
            # else the directory would be made by claiming it
            message = f"holds no sweep: there is no {JOURNAL} in it"
            hint = "give the directory of a sweep, such as multirun/DATE/TIME"
            raise ConfigError((Diagnostic("resume", RESUME, repr(path), message, hint),))
        key = RESUME if resume else "hydra.sweep.dir"
        with naming(path):
            lock = lock_directory(path, LOCK_NAME, key, "sweep", patience, say)
        held = HeldDirectory(path, lock)
        try:
            if resume:
                journal = Journal.open(file, history.add)
                return cls(held, journal, Resumed(version, given, direction, slots), history)
            former = set_aside(path)
            if former is not None and say is not None:
                say(
                    f"{path} holds a sweep already, which {RESUME}={path} would go "
                    f"on with; a new one begins, and the journal of that one is now {former}"
                )
            header = Header(id_of(path), version, given, direction=direction, slots=slots)
            return cls(held, Journal.create(file, header, history.add), None, history)
        except BaseException:
            held.release()
            raise

    def plan(
        self,
        jobs: Sequence[Sequence[str]],
        first_number: int,
        compose: Compose,
        *,
        clusters: bool = False,
    ) -> Batch:
        """Gives the jobs of a batch their numbers; of a resumed sweep, finds those of before.

        ``jobs``: the overrides of each job, redacted as the journal's are. They are looked at only
        in a resumed sweep, and then more than once. ``compose``: composes the jobs that have
        finished, for comparison, one after another.

        Raises:
            ConfigError: the config of a job that has finished has changed, or what ``compose``
                raises. Nothing has been written then.
            OutputError: a job's result cannot be read, or the journal cannot be written.
            RuntimeError: the sweep was resumed with another batch before. What a sweeper asks for
                next may follow from results of earlier jobs: there is nothing to compare with.
        """
        if not self.resumed:
            self.journal.append(PlannedRecord(len(jobs)))
            return Batch(jobs, range(first_number, first_number + len(jobs)))
        if self._resumption is None:
            raise RuntimeError("a sweep is resumed with one batch of jobs")
        before = self._history.jobs
        planned = plan_resume(
            read_results(self.path, before.values()).values(),
            jobs,
            compose,
            first=first_number,
            configs_of=functools.partial(read_configs, self.journal.path),
            clusters=clusters,
        )
        self.journal.append(self._resumption)
        self._resumption = None
        self.journal.keep(PlannedRecord(len(planned)))
        skipped = {job.job: job for job in planned if job.finished}
        for number, job in skipped.items():
            if job.result is not None and not before[number].finished:
                # the launcher that ran it had not come to that
                self.journal.keep(EndedRecord(number, job.retry, job.result))
        self.journal.flush()
        return Batch(jobs, tuple(job.job for job in planned), skipped)

    def job(self, number: int) -> JobHistory | None:
        """Return what the journal tells of a job by now, None if nothing."""
        return self._history.jobs.get(number)

    def directory_of(self, number: int) -> str:
        """Return where the result.json of a job is, absolute; empty if that is not known."""
        job = self.job(number)
        return "" if job is None or not job.directory else os.path.join(self.path, job.directory)

    @property
    def direction(self) -> Direction | None:
        """Which of two objectives is better; None if that is not known."""
        return self._history.known.direction

    def result(self) -> SweepResult:
        """Return what sweep.json says, without the jobs that the sweep did not come to."""
        return summary_of(self._history, time.time_ns())

    def write(
        self,
        result: SweepResult,
        numbers: Iterable[int] = (),
        overrides: Callable[[int], Sequence[str]] = lambda number: (),  # noqa: ARG005
    ) -> None:
        """Writes sweep.json.

        Raises:
            OutputError: it cannot be written.
        """
        write_summary(self._directory.file(SUMMARY), result.with_others(numbers, overrides))

    def close(self) -> None:
        """Closes the journal and gives the directory back; idempotent."""
        self.journal.close()
        self._directory.release()


def id_of(path: str) -> str:
    """Returns a sweep's name, made from the last two parts of its directory."""
    parts = [part for part in path.split("/") if part][-2:]
    return re.sub(r"[^\w.-]", "_", "-".join(parts)) or "sweep"


class JobRecords:
    """What of each job that is not settled goes into the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._base = os.path.dirname(journal.path)
        # Composed, and not in the journal yet.
        self._ahead: dict[int, ComposedRecord] = {}

    def composed(self, answer: v.JobComposed | v.JobBroken) -> None:
        """A job was composed; the journal gets that when the job starts, or is settled."""
        self._ahead[answer.number] = self._record(answer)

    def starts(self, answer: Prepared, attempt: int, lease: Lease, pid: int | None) -> None:
        """A job is let begin, or put into a queue, as soon as this returns.

        ``pid``: of its process; None if it is not on this machine.

        Raises:
            OutputError: the journal cannot be written; this can be tried again.
        """
        self._ahead.pop(answer.number, None)
        self._journal.keep(self._record(answer))
        if answer.directory:
            directory = os.path.join(self._base, answer.directory)
            forget_result(directory)
            if self._journal.path and pid is not None:
                # in a batch job, where there is no journal, it is this one's
                forget_submission(directory)
        self._journal.append(StartedRecord(answer.number, attempt, lease, pid))

    def ended(
        self, number: int, attempt: int, directory: str, exit_code: int, why: str
    ) -> v.JobEnded:
        """A job that has begun ended.

        ``why``: what is known of it beside its result.json; counts where that says nothing.
        """
        result, kind = None, ""
        if directory:
            try:
                run = read_result(os.path.join(self._base, directory))
            except OutputError as error:
                # This job's affair: the others go on.
                run, why = None, f"its result cannot be read: {error}"
            result = result_of(run)
            if result is not None and result.succeeded:
                # all was done and said, however the process ended
                exit_code = 0
            elif exit_code == 0:
                exit_code = (result and result.exit_code) or int(ExitCode.ERROR)
            kind = run.cause_type if run is not None and exit_code else ""
        cause = cause_of(exit_code, kind)
        if result is None or result.exit_code != exit_code:
            text = (result.root_cause if result else "") or first_line(why)
            state = "signalled" if by_signal(exit_code) else "error"
            if exit_code == 0:
                state, text = "succeeded", ""
            result = Result(state, exit_code, text)
        elif result.state == "signalled" and self._journal.path:
            # Somebody has told this job to end. In a batch job all are told at once.
            cause = None
        self._journal.keep(EndedRecord(number, attempt, result))
        why = result.root_cause if exit_code else ""
        return v.JobEnded(number, exit_code, cause, why, result.seconds, result.objective)

    def settled(self, end: v.Settle) -> None:
        """What became of a job is known."""
        composed = self._ahead.pop(end.number, None)
        if composed is not None:
            self._journal.keep(composed)
        if composed is not None and end.state is v.JobState.FAILED:
            # It cannot run.
            result = Result("error", end.exit_code, first_line(end.why))
            self._journal.keep(EndedRecord(end.number, 0, result))
        elif composed is not None or end.state is v.JobState.NOT_RUN:
            self._journal.keep(Skipped(end.number, first_line(end.why) or end.state.value))

    def over(self, exit_code: int) -> None:
        """The sweep is over."""
        self._journal.keep(OverRecord(exit_code))
        with contextlib.suppress(OutputError):
            self._journal.flush()

    def _record(self, answer: v.JobComposed | v.JobBroken) -> ComposedRecord:
        directory = answer.directory
        if os.path.isabs(directory):
            relative = os.path.relpath(directory, self._base)
            directory = directory if relative.split(os.sep)[0] == os.pardir else relative
        composed = ComposedRecord(answer.number, answer.overrides, directory)
        if not isinstance(answer, Prepared):
            return composed
        return replace(composed, fingerprint=answer.fingerprint, config=answer.config)


# Which jobs of a sweep that is resumed run, and under which numbers. They are matched by their
# overrides: first by the same, then by those that change a job's outcome
# (`lllaunch.sweep.fingerprint.NEUTRAL`). Of several with the same overrides each is matched once,
# in the order of their numbers. The others are new, or never started, which the journal does not
# tell apart.

_MOST_LINES = 8  # of a difference, which is one of several
_WIDEST = 60  # characters of a value in it

_ENOUGH = 50  # jobs that have changed; to compose many more, only to say the same, takes long


def match_jobs(
    old: Iterable[JobHistory],
    overrides: Sequence[Sequence[str]],
    first: int = 0,
    *,
    clusters: bool = False,
) -> list[JobHistory]:
    """Finds the old job of each new one. Needs no config.

    Returns each job, in the order of ``overrides``: one that was there before keeps its number and
    its directory. No number occurs twice. A job that is new gets the number of its place, or where
    that is not free one above all old jobs'.
    """
    free = {job.job: job for job in old}
    known = {*free}
    above = max(free, default=first - 1) + 1
    matched: dict[int, JobHistory] = {}
    # first by all overrides, then by those that change a job's outcome
    for neutral in (True, False):
        wanted: dict[str, list[int]] = {}
        for index, texts in enumerate(overrides):
            if index not in matched:
                key = overrides_key(texts, neutral, clusters=clusters)
                wanted.setdefault(key, []).append(index)
        alike: dict[str, list[JobHistory]] = {}
        for job in free.values():
            key = overrides_key(job.overrides, neutral, clusters=clusters)
            alike.setdefault(key, []).append(job)
        for key, indexes in wanted.items():
            # where there are more than needed, those that have finished
            best = sorted(alike.get(key, ()), key=lambda job: (not job.finished, job.job))
            chosen = sorted(best[: len(indexes)], key=lambda job: job.job)
            for index, job in zip(indexes, chosen, strict=False):
                matched[index] = free.pop(job.job)
    new = [index for index in range(len(overrides)) if index not in matched]
    given = {index: first + index for index in new if first + index not in known}
    known.update(given.values())
    more = (number for number in itertools.count(above) if number not in known)
    for index in new:
        matched[index] = JobHistory(given[index] if index in given else next(more))
    return [matched[index] for index in range(len(overrides))]


def plan_resume(
    old: Iterable[JobHistory],
    overrides: Sequence[Sequence[str]],
    compose: Compose,
    *,
    first: int = 0,
    configs_of: Callable[[Collection[int]], Configs] = lambda _: {},
    clusters: bool = False,
) -> list[JobHistory]:
    """Decides what becomes of each job of a sweep that is resumed.

    ``compose``: composes those that have finished, one after another, to the canonical config that
    they would have now; called with the place of each in ``overrides`` and the old job. Not all
    that it would compose need be wanted. ``configs_of``: the canonical configs of old jobs, as far
    as they were kept; asked for those whose fingerprint has changed.

    Raises:
        ConfigError: the config of a job that has finished is another one now; says in what.
    """
    matches = match_jobs(old, overrides, first, clusters=clusters)
    finished = [(index, job) for index, job in enumerate(matches) if job.finished]
    now: dict[int, Mapping[str, Any]] = {}  # of those that have changed; not of all
    looked_at = 0
    with contextlib.closing(compose(finished)) as composed:
        for (_, job), config in zip(finished, composed, strict=True):
            looked_at += 1
            if job.fingerprint != job_key(config):
                now[job.job] = config
                if len(now) >= _ENOUGH:
                    break
    if not now:
        return matches
    before = configs_of(now.keys())
    # for each difference the jobs that have it, by number
    changed: dict[tuple[str, ...], list[JobHistory]] = {}
    for job in sorted((job for _, job in finished if job.job in now), key=lambda job: job.job):
        kept = before.get(job.job)
        # the journal does not keep the order of keys
        change = () if kept is None else differences(kept, now[job.job], ordered=False)
        changed.setdefault(tuple(text_lines(change, _MOST_LINES, _WIDEST)), []).append(job)
    *most, last = [_problem(change, jobs) for change, jobs in changed.items()]
    if others := len(finished) - looked_at:
        text = f"({others} more of those that have finished were not compared)"
        last = dataclasses.replace(last, hint=f"{last.hint}\n    {text}")
    raise ConfigError((*most, last))


def _problem(change: Sequence[str], jobs: Sequence[JobHistory]) -> Diagnostic:
    what = [*change] or ["what has changed is not known: the old config was not kept"]
    numbers = [job.job for job in jobs]
    if len(jobs) == 1:
        overrides = " ".join(jobs[0].overrides)
        whose = f"job {numbers[0]} ({overrides})" if overrides else f"job {numbers[0]}"
        message = "has finished, and its config has changed since"
        delete = "delete its result.json to run it again"
    else:
        whose = f"jobs {spans(numbers)}"
        message = "have finished, and their configs have changed since"
        delete = "delete their result.json files to run them again"
    ways = f"put it back, begin another sweep, or {delete}"
    return Diagnostic("changed", RESUME, whose, message, "\n    ".join([f"{ways}:", *what]))
