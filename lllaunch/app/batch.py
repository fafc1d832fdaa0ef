"""A run that goes to a cluster: how it is submitted and followed, and what its batch job does.

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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from lllaunch.app.command_line import prestarted
from lllaunch.cluster import slurm
from lllaunch.cluster.values import expand_hosts
from lllaunch.console.console import Console
from lllaunch.errors import ConfigError, Diagnostic, LaunchError, OutputError, SnapshotFailed, Unfit
from lllaunch.exit_codes import ExitCode
from lllaunch.files import open_file
from lllaunch.results.index import remember
from lllaunch.results.locate import entry_now, locate
from lllaunch.results.queue import BatchQueue, queue_text
from lllaunch.results.store import read_overrides, read_run
from lllaunch.run.directory import LOCK_NAME, PLAN, SUBMISSION
from lllaunch.run.files import naming, write_atomic
from lllaunch.run.result import KilledBySignal, NodeGone, RunResult, known_result
from lllaunch.run.snapshot import Snapshot, free_place, hold, let_go, remove, take
from lllaunch.run.submission import (
    FUNCTION,
    LOG,
    SCRIPT,
    BatchEnded,
    BatchJob,
    BatchStarted,
    EndFacts,
    Requeued,
    Submission,
    account_of,
    append,
    decide,
    forget_submission,
    read_submission,
)
from lllaunch.spawner.forks import flush_streams
from lllaunch.spawner.protocol import Function
from lllaunch.sweep.arrays import holder_of, read_tasks
from lllaunch.sweep.history import forget_result
from lllaunch.sweep.schedule import cause_of
from lllaunch.text import first_line
from lllaunch.words import shown_path
from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.app.rerun import RerunRequest
    from lllaunch.cluster.slurm import Ending, JobFacts
    from lllaunch.run.submission import Account, RequeueCause
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import Cluster, LaunchSpec, Requeue

# Of a snapshot that is no other run's.
_HOLDER = "run"
# Between two looks at a queue, seconds: at first.
_PAUSE = 1.0
# Seconds that a command to Slurm may take: there are not many more from a signal to SIGKILL.
_PATIENCE = 10.0


def read_function(directory: str) -> UserFunction | None:
    """Return what workers call in the run of a directory; None if its plan says it.

    What cannot be read, or others than this user could have written, is an `OutputError`.
    """
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


def replace_submission(directory: str) -> None:
    """Forget an earlier submission of a directory, where another run is to begin.

    One whose batch job is not over, as far as anybody can tell, is a `ConfigError`.
    """
    submission, ended = read_submission(directory), account_of(directory).last
    if submission and not submission.refused and not isinstance(ended, BatchEnded):
        queue = BatchQueue()
        job = queue.find(submission)
        if job is not None or (slurm.available() and not queue.answers):
            what = f"batch job {submission.job}" if submission.job else "a batch job"
            known = queue_text(job) if job is not None else "Slurm does not answer"
            message = f"is the directory of {what}, which is not over ({known})"
            hint = "stop it, wait for it, or choose another directory with hydra.run.dir=..."
            problem = Diagnostic("in-use", "hydra.run.dir", repr(directory), message, hint)
            raise ConfigError((problem,))
    forget_submission(directory)


def make_ready(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    snapshot: Snapshot | None,
    directory: str,
) -> None:
    """Write what a batch job needs to run a run: its plan, and what workers call.

    Hydra's config is that of the job; ``user`` is as for `lllaunch.app.planning.plan_job`. Workers
    that could only be forked from this process are a `ConfigError`.
    """
    from lllaunch.config.plan import plan_config  # noqa: PLC0415 - batch jobs begin without Hydra

    # of an earlier submission, whose end is not this one's
    forget_submission(directory)
    if user is not None:
        if snapshot is not None:
            user = user._replace(place=snapshot.place)
        target = user.target(cfg)
        if not isinstance(target, Function):
            message = (
                f"needs a function that workers can import, and {user.entrypoint.text} is none"
            )
            hint = "put it at the top level of its module"
            raise ConfigError((Diagnostic("cluster", "cluster", "", message, hint),))
        submitted = user._replace(function=target, place=str)
        data = pickle.dumps(submitted, pickle.HIGHEST_PROTOCOL)
        former = os.umask(0o077)
        try:
            write_atomic(os.path.join(directory, FUNCTION), data)
        finally:
            os.umask(former)
    plan = plan_config(spec).encode("utf-8", "surrogateescape")
    write_atomic(os.path.join(directory, PLAN), plan)


def command_of(*words: str) -> list[str]:
    """Return the command line of a batch job."""
    return [sys.executable, "-m", "lllaunch", "job", *words]


def batch_text(spec: LaunchSpec, name: str) -> str:
    """Return the batch file of a run; the name is for a job whose settings have none."""
    cluster = spec.cluster
    assert cluster is not None
    return slurm.batch_text(
        cluster,
        command=command_of(spec.output_dir),
        directory=spec.output_dir,
        output=os.path.join(spec.output_dir, LOG),
        name=name,
    )


def submit_run(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    name: str,
    release: Callable[[], object],
) -> RunResult:
    """Submit a run whose directory is claimed and has its ``.hydra``, and follow it if asked.

    ``cfg`` and ``user`` are as for `make_ready`, ``name`` is for a batch job whose settings have
    none. ``release`` gives the directory back, before the batch job can start. A run that is left
    alone ends the app.
    """
    cluster, directory, console = spec.cluster, spec.output_dir, Console()
    assert cluster is not None
    if spec.log_dir != directory:
        message = "is another directory than Hydra's, where the run of a cluster keeps its files"
        hint = "leave it out, and set hydra.run.dir"
        raise ConfigError((Diagnostic("cluster", "launch.log_dir", "", message, hint),))
    remember(directory, spec.runtime_cwd, os.environ)
    slurm.expect_available()
    replace_submission(directory)
    text = batch_text(spec, name)
    problem = slurm.test_only(text)
    if problem is not None:
        raise slurm.SubmitFailed("sbatch --test-only", problem, exit_code=int(ExitCode.CONFIG))
    snapshot = None
    if cluster.snapshot != "none":
        snapshot = take(spec.runtime_cwd, free_place(directory), os.environ, console.note)
    make_ready(spec, cfg, user, snapshot, directory)
    submission = Submission.of(cluster, directory, snapshot=snapshot, holder=_HOLDER)
    if snapshot is not None and cluster.snapshot == "temporary":
        hold(snapshot, [_HOLDER])
    # its id may be lost with this process; the directory then tells which it is
    submission.write(directory)
    # that of a former run would be taken for this one's
    forget_result(directory)
    release()
    # a Ctrl-C waits until it is known what is in the queue
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        job = slurm.submit(text, os.path.join(directory, SCRIPT))
        submission = structs.replace(submission, job=job)
        submission.write(directory)
    except slurm.SubmitFailed as error:
        if not error.unsure:
            forget_submission(directory)
            # whoever finds the directory is told why nothing runs
            refused = structs.replace(submission, refused=error.said, snapshot=None, holder="")
            refused.write(directory)
            if snapshot is not None:
                remove(snapshot)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    where = shown_path(directory, os.getcwd())
    console.note(f"submitted job {submission.job}, the run is in {where}")
    result = _follow(directory, console, cluster.poll_s) if follows(cluster) else None
    if result is None:
        from lllaunch.app.boundary import AppEnded  # noqa: PLC0415 - as above

        raise AppEnded(ExitCode.SUCCESS)
    return result


def follows(cluster: Cluster) -> bool:
    """Return whether the launcher stays until a run is over."""
    if cluster.detach is not None:
        return not cluster.detach
    return sys.stdout.isatty()


def ask(what: str) -> Literal["leave", "cancel", "follow"]:
    """Ask on the terminal what Ctrl-C is to mean for a job; another one means to leave it."""
    sys.stderr.write(f"\nlllaunch: leave {what}, cancel, or follow on? [L/c/f] ")
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        return "leave"
    return "cancel" if answer[:1] == "c" else "follow" if answer[:1] == "f" else "leave"


def _follow(directory: str, console: Console, longest: float) -> RunResult | None:
    """Show a submitted run until it is over, and return what became of it; None if it is left."""
    follower = Follower("follow", elsewhere=True)
    follower.add(os.path.join(directory, LOG), b"", sys.stdout)
    follower.start()
    queue, said, pause = BatchQueue(), "", _PAUSE
    try:
        while True:
            try:
                queue.forget()
                entry = entry_now(locate(directory), queue)
                if not entry.queue:
                    entry, result = read_run(locate(directory), queue)
                    break
                if entry.queue != said:
                    said = entry.queue
                    console.note(f"job {entry.batch_job}: {entry.queue}")
                time.sleep(pause)
                pause = min(pause * 1.2, longest)
            except KeyboardInterrupt:
                pause = _PAUSE
                where = shown_path(directory, os.getcwd())
                asks = sys.stdin.isatty() and sys.stderr.isatty()
                answer = ask("the job") if asks else "leave"
                submission = read_submission(directory)
                if answer == "cancel" and submission is not None and submission.job:
                    slurm.cancel([submission.job])
                elif answer == "leave":
                    console.note(
                        f"left; 'lllaunch logs -f {where}' follows it, "
                        f"'lllaunch stop {where}' ends it"
                    )
                    return None
        if entry.exit_code is not None and result is not None:
            return result
        why = f": {entry.root_cause}" if entry.root_cause else ""
        console.warning(f"the run has ended without a result{why}; see {LOG}")
        code = int(ExitCode.ERROR) if entry.exit_code is None else entry.exit_code
        return RunResult("error", code, directory)
    finally:
        follower.stop()


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
        raise BatchJobRefused(_superseded(job, submission.job))
    first = leads()
    account = account_of(directory)
    batch = BatchJob(
        directory,
        account,
        leads=first,
        continues=account.starts > 0 if first else restart_count() > 0,
        snapshot=submission.snapshot,
        overrides=None if submission.directory else read_overrides(directory),
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


def _run(batch: BatchJob, _: Submission) -> int:
    from lllaunch.app.rerun import read_submitted  # noqa: PLC0415 - Hydra is imported

    again = read_submitted(batch.directory)
    enter_code(again.cwd, batch.snapshot)
    with prestarted(()) as spawner:
        return perform(batch, again, spawner)


def perform(batch: BatchJob, again: RerunRequest, spawner: Spawner | None) -> int:
    """Run what was submitted; return its exit code."""
    from lllaunch.app.gate import admit_directory  # noqa: PLC0415 - as above
    from lllaunch.app.rerun import run_again  # noqa: PLC0415 - as above

    admit_directory(batch.directory)
    sys.argv[1:] = []
    return run_again(again, spawner, batch)


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
    holder = holder_of(directory, index)
    task = tasks[index]
    submission = structs.replace(submission, job=job, directory="", holder=holder)
    if len(task) == 1:
        own = task[0].directory
        _write_submission(own, submission)
        # files of several machines do not take lines of each other whole
        if leads():
            # what it has said so far; Slurm goes on writing to that file, too
            said, log = os.path.join(directory, f"{index}.log"), os.path.join(own, LOG)
            if not os.path.lexists(log):
                with contextlib.suppress(OSError):
                    os.rename(said, log)
            redirect(log)
        return run_in_job(own, job, submission)
    from lllaunch.app.sweeping.packed import run_pack  # noqa: PLC0415 - heavy

    for each in task:
        _write_submission(each.directory, submission)
    above = os.path.join(directory, str(index))
    with naming(above):
        os.makedirs(above, exist_ok=True)
    _write_submission(above, submission)
    return run_in_job(above, job, submission, partial(run_pack, task))


def _write_submission(directory: str, submission: Submission) -> None:
    """Write what was submitted, unless who has submitted it has come to do that."""

    def number(job: str) -> int:
        # 123, or 123_4 of an array; they grow
        text = job.partition("_")[0]
        return int(text) if text.isdecimal() else 0

    known = read_submission(directory)
    if known is not None and number(known.job) > number(submission.job):
        raise BatchJobRefused(_superseded(submission.job, known.job))
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
        raise BatchJobRefused(f"the run {reason}: it is not started again")


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


def enter_code(cwd: str, snapshot: Snapshot | None) -> None:
    """Work and import where the command was given, or there in the snapshot of the code."""
    place = str if snapshot is None else snapshot.place
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
    ending = None if facts is None else slurm.ending(facts, restart_count())
    end_time = None if facts is None else facts.end_time
    left = None
    if end_time is not None and batch.signalled_ns:
        left = max(0.0, end_time - batch.signalled_ns / 1e9)
    decision = decide(
        batch.account,
        EndFacts(
            code,
            signalled=announced,
            cause=_cause_of_ending(ending),
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


def _cause_of_ending(ending: Ending | None) -> RequeueCause | None:
    """Return what an end was about, as far as Slurm says."""
    if ending != "requeued":
        return None if ending == "cancelled" else ending
    with contextlib.suppress(LaunchError):
        down = slurm.has_down_node(os.environ.get("SLURM_JOB_NODELIST", ""))
        return "node_failure" if down else "preempted"
    return None


def restart_count() -> int:
    """Return how often this batch job was put back into the queue, as its environment says."""
    text = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def _superseded(job: str, other: str) -> str:
    return f"batch job {job} is not run: its run was submitted again as {other}"


@dataclass(eq=False)
class BatchJobRefused(LaunchError):
    """A batch job does not run its run: another one does, or it has been requeued too often."""

    reason: str

    def __str__(self) -> str:
        return self.reason
