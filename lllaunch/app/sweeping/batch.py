"""One batch of jobs, from the words of the sweeper to what Hydra is told of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from hydra.core.utils import filter_overrides
from omegaconf import OmegaConf

from lllaunch.app.ci import tell_ci
from lllaunch.app.ending import JobEnded
from lllaunch.app.sweeping.comparing import Comparing
from lllaunch.app.sweeping.labels import Labels
from lllaunch.app.sweeping.returns import SweptJob
from lllaunch.console.sweep import SweepConsole
from lllaunch.console.wording import counted
from lllaunch.errors import LaunchError, OutputError
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.multiprocessing.signals import STACKS_ON, SignalSource
from lllaunch.sweep.loop import Sweep
from lllaunch.sweep.prepared import Broken, JobAnswered, Prepared
from lllaunch.sweep.schedule import Finish, JobState, Settle

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from lllaunch.app.sweeping.composing import JobConfig
    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.config.sweep import SweepSettings
    from lllaunch.sweep.leases import Leases
    from lllaunch.sweep.machine import Machine
    from lllaunch.sweep.session import SweepSession
    from lllaunch.sweep.warmth import Warmth

# A live display shows times, and what a burst of changes has left undrawn.
_TICK_SECONDS = 0.25


class Resources(NamedTuple):
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
    machine: Machine
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
        self, opened: Resources, overrides: Sequence[Sequence[str]], first: int, place: int
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

    def to_the_end(self) -> Finish:
        """Runs the jobs, and writes and says what became of them, however that ended.

        Raises:
            LaunchError: the sweep itself failed, or could not be written down.
        """
        batch, session = self._batch, self._opened.session
        numbers = [number for number in batch.numbers if number not in batch.skipped]
        console = SweepConsole(machine=_machine_text(self._opened.machine))
        failure: LaunchError | None = None
        finish: Finish | None = None
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
        document = session.document()
        # before the console has its last word, which it may have to wait for
        try:
            session.write(document, batch.numbers, self._label)
        except OutputError as error:
            failure = failure or error
        if self._opened.at_once:
            console.finished(document, batch.numbers, resume=self._opened.command)
        else:
            console.finished(document, resume=None)
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
    ) -> Finish:
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
        failure: JobEnded | None = None
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


def _failure(name: str, end: Settle | None) -> JobEnded | None:
    """The exception of a job that did not succeed, None of one that did."""
    if end is None:
        return JobEnded(ExitCode.ERROR, f"lllaunch: {name} was not run")
    if end.state in {JobState.SUCCEEDED, JobState.SKIPPED}:
        return None
    code = ExitCode.ERROR if end.exit_code is None else end.exit_code
    if end.state is JobState.NOT_RUN:
        return JobEnded(code, f"lllaunch: {name} was not run{_after(end.why)}")
    return JobEnded(code, f"lllaunch: {name} failed (exit code {code}){_after(end.why)}")


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


def _machine_text(machine: Machine) -> str:
    parts = [counted(len(machine.gpus), "GPU")] if machine.gpus else []
    return ", ".join([*parts, counted(len(machine.cpus), "core")])
