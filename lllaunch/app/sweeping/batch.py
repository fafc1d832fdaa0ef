"""One batch of jobs, from the words of the sweeper to what Hydra is told of each.

What Hydra is told of a job is looked up when it is asked for, so that it costs nothing: a sweep of
ten thousand jobs keeps neither configs nor return values. The first are composed again, the second
read from result.json.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, JobStatus, filter_overrides
from omegaconf import OmegaConf

from lllaunch.app.boundary import JobFailed, QuietReturn, reason_of, tell_ci, without_variables
from lllaunch.app.returned import load
from lllaunch.app.sweeping.aside import aside_each
from lllaunch.app.sweeping.jobs import Labels
from lllaunch.console.sweep import SweepConsole
from lllaunch.console.wording import counted
from lllaunch.errors import ConfigError, LaunchError, OutputError, Problem
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.run.directory import RESULT
from lllaunch.run.outcome import ReturnValue
from lllaunch.signal_source import STACKS_ON, SignalSource
from lllaunch.sweep.fingerprint import job_key
from lllaunch.sweep.loop import Sweep
from lllaunch.sweep.prepared import Broken, JobAnswered, Prepared
from lllaunch.sweep.results import read_result
from lllaunch.sweep.resume import NewJob
from lllaunch.sweep.schedule import FinishSweep, JobState, Settle

if TYPE_CHECKING:
    from collections.abc import Generator

    from hydra.core.utils import JobReturn
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.composing import JobConfig
    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.config.sweep import SweepSettings
    from lllaunch.run.outcome import ReturnValue
    from lllaunch.sweep.leases import Leases
    from lllaunch.sweep.machine import SweepMachine
    from lllaunch.sweep.session import Asked, SweepSession
    from lllaunch.sweep.warmth import Warmth


class Comparing:
    """Composes as many jobs at once as there are cores; `close` it.

    Args:
        jobs: composes them.
        overrides: of all jobs.
        sweep_dir: the sweep's directory, absolute.
    """

    def __init__(self, jobs: SweepJobs, overrides: Sequence[Sequence[str]], sweep_dir: str) -> None:
        self._jobs = jobs
        self._overrides = overrides
        self._sweep_dir = sweep_dir
        self._composed: Generator[NewJob, None, None] | None = None

    def expect(self, asked: Sequence[Asked]) -> None:
        """Takes note of what `compose` will be called with, in order."""
        processes = max(1, len(os.sched_getaffinity(0)))
        self._composed = aside_each(self._compose, asked, processes)

    def compose(self, index: int, number: int, directory: str) -> NewJob:  # noqa: ARG002 - expected
        """Returns what the next of the expected jobs is now.

        Raises:
            LaunchError: it cannot be composed.
        """
        assert self._composed is not None
        return next(self._composed)

    def close(self) -> None:
        """Composes no more; idempotent."""
        if self._composed is not None:
            self._composed.close()

    def _compose(self, asked: Asked) -> NewJob:
        index, number, directory = asked
        label = Labels(self._overrides, marks=self._jobs.composer.users_own)[index]
        try:
            planned = self._jobs.plan(
                self._overrides[index], number, os.path.join(self._sweep_dir, directory)
            )
        except LaunchError:
            raise
        except Exception as error:
            name = f"job {number} ({' '.join(label)})"
            reason = without_variables(reason_of(error))
            problem = Problem(name, "", f"cannot be composed any more: {reason}")
            raise ConfigError((problem,)) from error
        former = job_key(planned.former())
        return NewJob(label, job_key(planned.identity), planned.identity, former)


class SweptJob(QuietReturn):
    """What became of a job of a sweep.

    Args:
        overrides: of the job, as Hydra lists them.
        directory: where its result.json is; empty if it never ran.
        failure: why there is no return value; None if the job succeeded.
        compose: composes the job again.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        directory: str,
        failure: JobFailed | None,
        compose: Callable[[], JobConfig],
    ) -> None:
        self.overrides = list(overrides)
        self.status = JobStatus.COMPLETED if failure is None else JobStatus.FAILED
        self.task_name = JobRuntime.instance().get("name")
        self._directory = directory
        self._failure = failure
        self._compose = compose

    @property
    def cfg(self) -> DictConfig:  # type: ignore[override]
        """The job's config, composed again."""
        return self._again().own()

    @property
    def hydra_cfg(self) -> DictConfig:  # type: ignore[override]
        """Hydra's config of the job, composed again."""
        found: DictConfig = OmegaConf.masked_copy(self._again().whole, "hydra")
        return found

    @property
    def working_dir(self) -> str:  # type: ignore[override]
        """Where the job worked: its output directory with ``hydra.job.chdir``."""
        return self._again().where.cwd

    @property
    def _return_value(self) -> Any:
        """What rank 0 returned, or the exception that says why there is nothing."""
        return self._failure if self._failure is not None else load(returned(self._directory))

    def _again(self) -> JobConfig:
        before = HydraConfig.instance().cfg
        try:
            return self._compose()
        finally:
            HydraConfig.instance().cfg = before

    def __repr__(self) -> str:
        return f"SweptJob(overrides={self.overrides}, status={self.status.name})"


def returned(directory: str) -> ReturnValue | None:
    """What rank 0 of a run returned, as its result.json has it; None if that is nothing.

    Raises:
        OutputError: result.json cannot be read.
    """
    result = read_result(directory)
    if result is None or "return_values" not in result.fields:
        raise OutputError(os.path.join(directory, RESULT), "is not the result of a run")
    return result.return_value()


# A live display shows times, and what a burst of changes has left undrawn.
_TICK_SECONDS = 0.25


class BatchResources(NamedTuple):
    """What a launcher has for all of its batches.

    Attributes:
        settings: of the launcher.
        machine: what may be leased.
        leases: what is.
        session: the sweep's directory.
        warmth: the warm spawners.
        jobs: composes and runs the jobs.
        taken: which job runs in a directory.
        at_once: whether the sweeper asks for all jobs at once, so that a resume can, too.
        command: how the app was called, if a resume needs no more than that; else empty.
    """

    settings: SweepSettings
    machine: SweepMachine
    leases: Leases
    session: SweepSession
    warmth: Warmth
    jobs: SweepJobs
    taken: dict[str, int]
    at_once: bool
    command: str


class BatchRun:
    """A batch of jobs.

    Args:
        opened: what the launcher has.
        overrides: of each job.
        first: number of the first job.
        place: how many batches were before.

    Attributes:
        concluded: whether the sweep's summary was written and shown; to be done by `conclude` after
            the last of several batches.

    Raises:
        LaunchError: the jobs of a sweep that is resumed have changed, or its directory cannot be
            written to.
    """

    def __init__(
        self, opened: BatchResources, overrides: Sequence[Sequence[str]], first: int, place: int
    ) -> None:
        self.concluded = False
        self._opened = opened
        self._place = place
        self._overrides = overrides
        self._labels = Labels(overrides, marks=opened.jobs.composer.users_own)
        self._ends: dict[int, Settle] = {}
        self._places: dict[int, str] = {}
        comparing = Comparing(opened.jobs, overrides, opened.session.path)
        with contextlib.closing(comparing):
            self._batch = opened.session.plan(
                self._labels, first, comparing.compose, comparing.expect
            )
        numbers = self._batch.numbers
        self._indices = numbers if isinstance(numbers, range) else _Places(numbers)

    def to_the_end(self) -> FinishSweep:
        """Runs the jobs, and writes and says what became of them, however that ended.

        Raises:
            LaunchError: the sweep itself failed, or could not be written down.
        """
        batch, session = self._batch, self._opened.session
        numbers = [number for number in batch.numbers if number not in batch.skipped]
        console = SweepConsole(machine=_machine_text(self._opened.machine))
        failure: LaunchError | None = None
        finish: FinishSweep | None = None
        # one that comes while the end is written and told does not keep that from being done
        with (
            SignalSource(quiet=STACKS_ON, stops=True) as signals,
            contextlib.closing(console),
        ):
            self._begin(console)
            try:
                finish = self._sweep(console, numbers, signals)
            except LaunchError as error:
                failure = error
            if self._opened.at_once or finish is None or finish.signum is not None:
                failure = self._conclude(console, failure)
            else:
                session.write_now_and_then(batch.numbers, self._label)
            late = [signum for signum in signals.received() if signum != signals.quiet]
        if failure is not None or finish is None:
            assert failure is not None
            raise failure
        if late and finish.signum is None:
            return replace(finish, signum=late[0], exit_code=for_signal(late[0]))
        return finish

    def conclude(self) -> None:
        """Writes and says what became of all batches, of which this was the last.

        Raises:
            OutputError: it cannot be written.
        """
        if self.concluded:
            return
        console = SweepConsole(live=False)
        with SignalSource(quiet=STACKS_ON), contextlib.closing(console):
            console.began(self._opened.session.path, 0, self._label, common=self._common(), batch=1)
            failure = self._conclude(console, None)
        if failure is not None:
            raise failure

    def _conclude(self, console: SweepConsole, failure: LaunchError | None) -> LaunchError | None:
        self.concluded = True
        batch, session = self._batch, self._opened.session
        result = session.result()
        # before the console has its last word, which it may have to wait for
        try:
            session.write(result, batch.numbers, self._label)
        except OutputError as error:
            failure = failure or error
        if self._opened.at_once:
            console.finished(result, batch.numbers, resume=self._opened.command)
        else:
            console.finished(result, resume=None)
        tell_ci(session.path)
        return failure

    def _begin(self, console: SweepConsole) -> None:
        batch = self._batch
        console.began(
            self._opened.session.path,
            len(batch.numbers),
            self._label,
            len(batch.skipped),
            common=self._common(),
            policy=self._opened.settings.policy,
            batch=None if self._opened.at_once else self._place,
        )

    def _common(self) -> frozenset[str]:
        """Overrides that all jobs have."""
        if self._opened.at_once:
            return _common(self._labels)
        # what the jobs of one batch have in common may be what the sweeper chooses; what stands on
        # the command line as it is in the job is not
        stated = OmegaConf.to_container(
            self._opened.jobs.composer.master.hydra.overrides.task, resolve=False
        )
        own = self._labels[0] if len(self._labels) else ()
        return frozenset(own) & frozenset(map(str, cast("list[object]", stated)))

    def _sweep(
        self, console: SweepConsole, numbers: Sequence[int], signals: SignalSource
    ) -> FinishSweep:
        opened = self._opened

        def observe(event: object) -> None:
            if isinstance(event, Settle):
                self._ends[event.number] = event
            elif isinstance(event, JobAnswered) and isinstance(event.answer, Prepared):
                self._places[event.number] = event.answer.directory
            console.observe(event)

        sweep = Sweep(
            opened.machine,
            opened.settings.policy,
            opened.leases,
            opened.session.journal,
            self._prepare,
            opened.jobs.execute,
            observe,
            numbers,
            review=self._review,
            warm=opened.warmth,
            captures=True,
            pins=opened.settings.pin_cpus,
            ticks=_TICK_SECONDS if console.live else None,
            label=self._label,
            full=console.awaited,
            locks=opened.session.locks,
            signals=signals,
        )
        return sweep.run()

    # In the processes of jobs

    def _prepare(self, number: int) -> Prepared | Broken:
        index = self._indices.index(number)
        # where it was tried before, by this launcher or another
        directory = self._places.get(number) or self._batch.directories.get(number)
        if directory is not None:
            directory = os.path.join(self._opened.session.path, directory)
        labels, overrides = self._labels[index], self._overrides[index]
        return self._opened.jobs.prepare(overrides, labels, number, directory)

    # In the launcher

    def _review(self, number: int, prepared: Prepared) -> Prepared | Broken:
        """Refuses a job that would write where another one does."""
        other = self._opened.taken.setdefault(prepared.directory, number)
        if other == number:
            return prepared
        why = (
            f"hydra.sweep.subdir or launch.log_dir: job {number} would run in the directory of job "
            f"{other} ({prepared.directory}); make it depend on the job, as ${{hydra.job.num}} does"
        )
        return Broken(ExitCode.CONFIG, why, prepared.overrides, prepared.directory)

    def _label(self, number: int) -> Sequence[str]:
        return self._labels[self._indices.index(number)]

    # What Hydra is told

    def returns(self) -> list[JobReturn]:
        """What became of each job."""
        return [self._returned(index, number) for index, number in enumerate(self._batch.numbers)]

    def _returned(self, index: int, number: int) -> JobReturn:
        overrides = self._overrides[index]
        skipped = self._batch.skipped.get(number)
        failure: JobFailed | None = None
        if skipped is not None:
            directory = skipped.history.directory
        else:
            directory = self._places.get(number) or self._batch.directories.get(number, "")
        directory = os.path.join(self._opened.session.path, directory) if directory else ""
        if skipped is None:
            name = self._labels.name(index, number)
            failure = _failure(name, self._ends.get(number))
        composer = self._opened.jobs.composer

        def again() -> JobConfig:
            return composer.compose(overrides, number, directory)

        return SweptJob(filter_overrides(overrides), directory, failure, again)


class _Places:
    """The place of each number in a list."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._places: Mapping[int, int] = {number: place for place, number in enumerate(numbers)}

    def index(self, number: int) -> int:
        return self._places[number]


def _failure(name: str, end: Settle | None) -> JobFailed | None:
    """The exception of a job that did not succeed, None of one that did."""
    if end is None:
        return JobFailed(ExitCode.ERROR, f"lllaunch: {name} was not run")
    if end.state in {JobState.SUCCEEDED, JobState.SKIPPED}:
        return None
    code = ExitCode.ERROR if end.exit_code is None else end.exit_code
    if end.state is JobState.NOT_RUN:
        return JobFailed(code, f"lllaunch: {name} was not run{_after(end.why)}")
    return JobFailed(code, f"lllaunch: {name} failed (exit code {code}){_after(end.why)}")


def _after(why: str) -> str:
    return f": {why}" if why else ""


def _common(labels: Sequence[Sequence[str]]) -> frozenset[str]:
    """Overrides that all jobs have."""
    if not labels:
        return frozenset()
    common = set(labels[0])
    for place in range(1, len(labels)):
        if not common:
            break
        common.intersection_update(labels[place])
    return frozenset(common)


def _machine_text(machine: SweepMachine) -> str:
    parts = [counted(len(machine.gpus), "GPU")] if machine.gpus else []
    return ", ".join([*parts, counted(len(machine.cpus), "core")])
