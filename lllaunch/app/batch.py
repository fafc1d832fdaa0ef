"""What a batch job does: the run that was submitted from a directory, or several of a sweep.

The run that was submitted from a directory is run there: its plan.yaml is read as `rerun` reads
one, and is resolved on that machine. Afterwards the job's first node decides whether the run goes
back into the queue, and writes that down before it asks for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from lllaunch.app.command_line import prestarted
from lllaunch.cluster import slurm
from lllaunch.cluster.address import expand_hosts
from lllaunch.console.console import Console
from lllaunch.errors import (
    ConfigError,
    Diagnostic,
    ExitCode,
    LaunchError,
    OutputError,
    SnapshotFailed,
    Unfit,
)
from lllaunch.files import naming, open_file
from lllaunch.locks import LOST_NODE_PATIENCE, PATIENCE
from lllaunch.review.paths import locks_all, policy_path, tree_top
from lllaunch.run.directory import LOCK_NAME, PLAN, SUBMISSION, RunDirectory, forget_result
from lllaunch.run.repository import BuildQuery, let_go
from lllaunch.run.result import KilledBySignal, NodeGone, RunResult, known_result
from lllaunch.run.submission import (
    FUNCTION,
    LOG,
    BatchEnded,
    BatchJob,
    BatchStarted,
    EndFacts,
    Requeued,
    Submission,
    account_of,
    append,
    decide,
    read_submission,
)
from lllaunch.spawner.forks import flush_streams
from lllaunch.sweep.arrays import holder_of, read_tasks
from lllaunch.sweep.schedule import cause_of
from lllaunch.text import first_line

if TYPE_CHECKING:
    from lllaunch.app.own_worker import UserFunction
    from lllaunch.cluster.slurm import JobFacts
    from lllaunch.run.submission import Account, RequeueCause
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec, Requeue

# Seconds that a command to Slurm may take: there are not many more from a signal to SIGKILL.
_PATIENCE = 10.0


def read_function(directory: str) -> UserFunction | None:
    """Return what workers call in the run of a directory; None if its plan says it."""
    path = os.path.join(directory, FUNCTION)
    try:
        with open(open_file(path), "rb") as file:
            status = os.fstat(file.fileno())
            # in a directory that others may write to they may have put one there
            if status.st_uid not in {0, os.getuid()} or status.st_mode & 0o022:
                raise OutputError(path, "is not run: others than this user may have written it")
            found: UserFunction = pickle.load(file)  # noqa: S301 - made by `make_ready`
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    return found


def job_id() -> str:
    """Return the id of the batch job that this process is in, ``123`` or ``123_4``."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    found = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
    if not found:
        text = "is for the batch jobs that lllaunch submits, and this is none"
        raise ConfigError((Diagnostic("cluster", "job", "", text, "to run a plan again: rerun"),))
    return found


def leads() -> bool:
    """Return whether this is the job's first node."""
    return os.environ.get("SLURM_NODEID", "0") == "0"


def run_in_job(
    directory: str,
    job: str,
    submission: Submission | None = None,
    work: Callable[[BatchJob, Submission], int] | None = None,
) -> int:
    """Run what was submitted from a directory, and decide whether it goes back into the queue.

    ``directory``: of the run, absolute. ``submission``: what was submitted; None for what the
    directory says. ``work``: what is done, if that is not one run; returns an exit code.
    """
    work, submission = work or _run, submission or read_submission(directory)
    if submission is None:
        problem = Diagnostic("cluster", "DIR", repr(directory), f"holds no {SUBMISSION}")
        raise ConfigError((problem,))
    if submission.job not in {"", job}:
        _end_others(job)
        raise LaunchError(_superseded(job, submission.job))
    first = leads()
    account = account_of(directory)
    batch = BatchJob(
        directory,
        account,
        leads=first,
        continues=account.starts > 0 if first else restart_count() > 0,
        snapshot=submission.snapshot,
    )
    signal.signal(signal.SIGTERM, batch.remember)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if not first:
        return work(batch, submission)
    try:
        ended = end_of(directory, account)
        if ended is not None and ended.exit_code == 0:
            _say("the run has succeeded already")
            _end_others(job)
            return int(ExitCode.SUCCESS)
        begin(batch, job, submission.requeue)
        code = work(batch, submission)
        _end(batch, submission, code, job)
    except LaunchError as error:
        if not isinstance(account.last, BatchEnded):
            batch.note(BatchEnded(error.exit_code, first_line(str(error))))
        _end_others(job)
        raise
    finally:
        if isinstance(account.last, BatchEnded):
            _let_go(batch, submission)
            # one file less for each job: nobody holds it any more, and the next one makes it
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, LOCK_NAME))
    return code


def _run(batch: BatchJob, submission: Submission) -> int:
    enter_code(submission, batch.directory)
    with prestarted(()) as spawner:
        return perform(batch, submission, spawner)


def perform(
    batch: BatchJob,
    submission: Submission,
    spawner: Spawner | None,
    spec: LaunchSpec | None = None,
) -> int:
    """Run what was submitted; return its exit code.

    To import Hydra, and to compose the plan as a config, takes most of the time of a short job: it
    is done only where the plan is not all that there is, or something says what may run.

    ``spec``: as `spec_of` has it, if that is known.
    """
    cwd = os.getcwd()
    if not submission.plain or locks_all(os.environ) or policy_path(tree_top(cwd), os.environ):
        from lllaunch.app.app import read_again, run_again  # noqa: PLC0415 - as above
        from lllaunch.app.gate import admit_directory  # noqa: PLC0415 - Hydra is imported

        admit_directory(batch.directory)
        sys.argv[1:] = []
        if not submission.directory:
            from lllaunch.results.store import read_overrides  # noqa: PLC0415 - as above

            batch.overrides = read_overrides(batch.directory)
        return run_again(read_again(batch.directory, submitted=True), spawner, batch)
    # while the spawner's interpreter starts
    from lllaunch.config.plan import plan_config, plan_hash  # noqa: PLC0415
    from lllaunch.run.execute import Run  # noqa: PLC0415

    console = Console()
    query = BuildQuery(cwd)
    try:
        spec = spec or spec_of(batch.directory)
        build = partial(query.of_run, spec, batch.snapshot)
        patience = LOST_NODE_PATIENCE if batch.continues else PATIENCE
        with RunDirectory.claim(
            batch.directory, patience, console.note, alone=batch.continues
        ) as held:
            plan = plan_config(spec), plan_hash(spec)
            run = Run(spec, *plan, console, spawner, build=build, directory=held, job=batch)
            batch.outcome, batch.ran = run.execute(), True
    except LaunchError as error:
        console.refused(str(error))
        return int(error.exit_code)
    finally:
        query.close()
    return batch.outcome.exit_code


def spec_of(directory: str) -> LaunchSpec:
    """Decide what the run of a plan is, here and in this directory.

    Raises `ConfigError` if the plan does not say it. Where it is not all that a run needs, this is
    what the run's spawner is made of.
    """
    # as above
    from omegaconf import OmegaConf  # noqa: PLC0415

    from lllaunch.config.nodes import HostContext  # noqa: PLC0415
    from lllaunch.config.plan import config_of, expect_same, read_plan  # noqa: PLC0415
    from lllaunch.config.resolve import resolve  # noqa: PLC0415

    path, cwd = os.path.join(directory, PLAN), os.getcwd()
    plan = read_plan(path)
    places = {"runtime.output_dir": directory, "runtime.cwd": cwd}
    OmegaConf.register_new_resolver("hydra", places.__getitem__, replace=True)
    config, known, function = config_of(plan), dict[str, Any](), read_function(directory)
    if function is not None:
        # the plan names a function of a user's own app
        del config["launch"]["entrypoint"], config["launch"]["args"]
        known = {"function": function.entrypoint, "preload": function.preload}
    around = HostContext(
        runtime_cwd=cwd, output_dir=directory, job_cwd=cwd, submitted=True, **known
    )
    spec = resolve(OmegaConf.create(config), around)
    expect_same(spec, plan, path)
    return spec


def end_of(directory: str, account: Account) -> BatchEnded | None:
    """Return how a run that was submitted has ended; None if it has not.

    A success is one as soon as result.json says so: the batch job may have been killed after that.
    """
    if isinstance(account.last, BatchEnded):
        return account.last
    result = known_result(directory)
    if result is None or result.exit_code != 0:
        return None
    ended = BatchEnded(0)
    append(directory, ended)
    account.add(ended)
    return ended


def _let_go(batch: BatchJob, submission: Submission) -> None:
    """Let go of a temporary snapshot."""
    if batch.snapshot is not None and submission.holder:
        # not from within
        os.chdir(batch.directory)
        try:
            let_go(batch.snapshot, submission.holder)
        except SnapshotFailed as error:
            _say(str(error))


def run_task(directory: str, job: str) -> int:
    """Run the jobs of a task of an array in its directory, absolute; the job is as ``123_4``."""
    index = int(job.rpartition("_")[2])
    tasks, submission = read_tasks(directory), read_submission(directory)
    if submission is None or index >= len(tasks):
        problem = Diagnostic("cluster", "DIR", repr(directory), f"has no task {index}")
        raise ConfigError((problem,))
    holder, task = holder_of(directory, index), tasks[index]
    submission = structs.replace(submission, job=job, directory="", holder=holder)
    own, work = task[0].directory, None
    if len(task) > 1:
        from lllaunch.app.packed import run_pack  # noqa: PLC0415 - heavy

        own, work = os.path.join(directory, str(index)), partial(run_pack, task)
        with naming(own):
            os.makedirs(own, exist_ok=True)
    for each in {own, *(each.directory for each in task)}:
        _write_submission(each, submission)
    # files of several machines do not take lines of each other whole
    if work is None and leads():
        # what it has said so far; Slurm goes on writing to that file, too
        said, log = os.path.join(directory, f"{index}.log"), os.path.join(own, LOG)
        if not os.path.lexists(log):
            with contextlib.suppress(OSError):
                os.rename(said, log)
        redirect(log)
    return run_in_job(own, job, submission, work)


def _write_submission(directory: str, submission: Submission) -> None:
    """Write what was submitted, unless who has submitted it has come to do that."""

    def number(job: str) -> int:
        # 123, or 123_4 of an array; they grow
        text = job.partition("_")[0]
        return int(text) if text.isdecimal() else 0

    known = read_submission(directory)
    if known is not None and number(known.job) > number(submission.job):
        raise LaunchError(_superseded(submission.job, known.job))
    if leads() and (known is None or known.job != submission.job):
        submission.write(directory)


def redirect(path: str) -> None:
    """Let this process write into a file from now on."""
    with naming(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    flush_streams()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def begin(batch: BatchJob, job: str, requeue: Requeue | None) -> None:
    """Write down that the job starts, and how it ended last, if that was without a word.

    One that has been taken back into the queue too often is refused.
    """
    # that of the start before, which is not the end
    forget_result(batch.directory)
    account, last = batch.account, batch.account.last
    back = account.lost()
    if back is not None:
        batch.note(back)
    elif isinstance(last, Requeued) and last.by == "slurm":
        back = last
    nodes: tuple[str, ...] = ()
    # for people alone: no run fails for it
    with contextlib.suppress(Unfit):
        nodes = tuple(expand_hosts(os.environ.get("SLURM_JOB_NODELIST", "")))
    batch.note(BatchStarted(job, nodes))
    reason = "" if back is None or requeue is None else account.refusal(back.cause, requeue)
    if reason:
        batch.note(BatchEnded(int(ExitCode.ERROR), reason))
        raise LaunchError(f"the run {reason}: it is not started again")


def _end_others(job: str) -> None:
    """Cancel a job that is over for its first node, whose other nodes would wait for that.

    One whose node is lost would be put back into the queue by Slurm.
    """
    if os.environ.get("SLURM_NNODES", "1") == "1":
        return
    # what this process still has to say
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(LaunchError):
        slurm.cancel([job])


def _facts(job: str, questions: int = 1) -> JobFacts | None:
    """Return what Slurm says of this job; None if it says nothing in time."""
    slurm.TIMEOUT = _PATIENCE
    for _ in range(questions):
        try:
            return slurm.job_facts(job)
        except LaunchError as error:
            _say(str(error))
    return None


def _say(text: str) -> None:
    Console().note(text)


def enter_code(submission: Submission, directory: str) -> None:
    """Work and import where the command was given, or there in the snapshot of the code."""
    cwd = submission.cwd
    if not cwd:
        # it was submitted by the version before
        from lllaunch.app.app import read_again  # noqa: PLC0415 - Hydra is imported

        cwd = read_again(directory, submitted=True).cwd
    place = str if submission.snapshot is None else submission.snapshot.place
    cwd = place(cwd)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise OutputError(cwd, error.strerror or str(error)) from error
    # the first is that of `python -m`, which began elsewhere
    before, sys.path[:] = sys.path[1:], [cwd, *map(place, sys.path[1:])]
    # of an editable install, which leads to the code of now: other interpreters look here first
    moved = [now for now, then in zip(sys.path[1:], before, strict=True) if now != then]
    if moved:
        former = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join([*moved, *map(place, former)])


def _end(batch: BatchJob, submission: Submission, code: int, job: str) -> None:
    """Decide whether the run goes back into the queue, write that down, and do it.

    What announces the end once more waits meanwhile, also for the commands that this asks.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    outcome = batch.outcome
    announced = batch.ran and _was_told_to_end(batch, code)
    result = known_result(batch.directory)
    kind = "" if result is None or outcome is None else result.cause_type
    lost_node = _has_lost_node(outcome, announced=announced)
    asks = announced or lost_node
    # asked again as long as there may be time for it: many may ask at once
    facts = _facts(job, questions=3) if asks else None
    ending, left = None, None
    cause: RequeueCause | None = None
    if facts is not None:
        ending = slurm.ending(facts, restart_count())
        if facts.end_time is not None and batch.signalled_ns:
            left = max(0.0, facts.end_time - batch.signalled_ns / 1e9)
    if ending == "requeued":
        with contextlib.suppress(LaunchError):
            down = slurm.has_down_node(os.environ.get("SLURM_JOB_NODELIST", ""))
            cause = "node_failure" if down else "preempted"
    elif ending != "cancelled":
        cause = ending
    decision = decide(
        batch.account,
        EndFacts(
            code,
            signalled=announced,
            cause=cause,
            seconds_left=left,
            failure=None if outcome is None or outcome.signum else cause_of(code, kind),
            cancelled=ending == "cancelled",
            taken_back=ending == "requeued",
            lost_node=lost_node,
            # the signal alone does not tell; submitit's does
            unexplained=announced and facts is None and batch.signal != signal.SIGUSR2,
        ),
        submission,
    )
    if isinstance(decision, BatchEnded):
        failed = code != ExitCode.SUCCESS and not batch.ran
        said = f"it could not be started; {LOG} says why" if failed else ""
        batch.note(structs.replace(decision, reason=decision.reason or said))
        if decision.reason:
            _say(f"the run does not go back into the queue: {decision.reason}")
        if lost_node or failed:
            _end_others(job)
        return
    batch.note(decision)
    why = {
        "preempted": "it was preempted",
        "timeout": "its time limit is near",
        "node_failure": "a node was lost",
        "failed": f"it failed ({decision.detail}), and is tried again",
    }
    _say(f"the run goes back into the queue: {why[decision.cause]}")
    if decision.by == "slurm":
        return
    try:
        slurm.requeue(job)
    except LaunchError as error:
        facts = _facts(job)
        # Slurm may have come first, and refuses what it has done itself
        if facts is None or slurm.ending(facts, restart_count()) != "requeued":
            batch.note(BatchEnded(code, first_line(str(error))))
            raise
    # Slurm ends what is left of the job, within that time
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    time.sleep(120.0)


def _was_told_to_end(batch: BatchJob, code: int) -> bool:
    """Return whether a run ended of a signal.

    Its workers, or another node, may have had theirs a moment sooner.
    """
    outcome = batch.outcome
    if outcome is None:
        # several runs
        return batch.announced and code > 128
    cause = None if outcome.root_cause is None else outcome.root_cause.cause
    if isinstance(cause, NodeGone):
        told = {node.name for node in outcome.nodes if node.state == "signalled"}
        if cause.subject in told:
            return True
    killed = isinstance(cause, KilledBySignal) and cause.signum == signal.SIGTERM
    return batch.announced and (outcome.signum is not None or killed)


def _has_lost_node(outcome: RunResult | None, *, announced: bool) -> bool:
    """Return whether a run has failed of the loss of a node, or had lost one when it was ended."""
    if outcome is None or not outcome.exit_code:
        return False
    lost = any(node.state == "lost" and node.said for node in outcome.nodes)
    failed = outcome.root_cause is not None and isinstance(outcome.root_cause.cause, NodeGone)
    return failed or (announced and lost)


def restart_count() -> int:
    """Return how often this batch job was put back into the queue, as its environment says."""
    text = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def _superseded(job: str, other: str) -> str:
    return f"batch job {job} is not run: its run was submitted again as {other}"
