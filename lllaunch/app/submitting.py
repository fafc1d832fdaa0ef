"""A run that goes to a cluster: what its batch job needs, how it is submitted, and followed."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from hydra.core.hydra_config import HydraConfig
from msgspec import structs

from lllaunch.app.boundary import AppEnded
from lllaunch.cluster import slurm
from lllaunch.config.plan import plan_config
from lllaunch.console.console import Console
from lllaunch.errors import ConfigError, Diagnostic, ExitCode
from lllaunch.files import write_atomic
from lllaunch.results.index import remember
from lllaunch.results.locate import entry_now, locate
from lllaunch.results.store import BatchQueue, queue_text, read_run
from lllaunch.run.directory import PLAN, forget_result
from lllaunch.run.result import RunResult
from lllaunch.run.snapshot import Snapshot, free_place, hold, remove, take
from lllaunch.run.submission import (
    FUNCTION,
    LOG,
    SCRIPT,
    BatchEnded,
    Submission,
    account_of,
    forget_submission,
    read_submission,
)
from lllaunch.spawner.protocol import Function
from lllaunch.words import shown_path
from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.spec import Cluster, LaunchSpec

# Of a snapshot that is no other run's.
_HOLDER = "run"
# Between two looks at a queue, seconds: at first.
_PAUSE = 1.0


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


# in a plan, what is not the environment's, a worker's or a directory
_OTHERS = re.compile(r"\$\{(?!oc\.env:|worker:|hydra:runtime\.(?:cwd|output_dir)\})")


def make_ready(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    snapshot: Snapshot | None,
    directory: str,
) -> bool:
    """Write what a batch job needs to run a run: its plan, and what workers call.

    Hydra's config is that of the job; ``user`` is as for `lllaunch.app.planning.plan_job`. Returns
    whether the plan is all that it needs. Workers that could only be forked from this process are a
    `ConfigError`.
    """
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
            key = "cluster" if spec.cluster is None else spec.cluster.key
            raise ConfigError((Diagnostic("cluster", key, "", message, hint),))
        submitted = user._replace(function=target, place=str)
        data = pickle.dumps(submitted, pickle.HIGHEST_PROTOCOL)
        former = os.umask(0o077)
        try:
            write_atomic(os.path.join(directory, FUNCTION), data)
        finally:
            os.umask(former)
    plan = plan_config(spec)
    write_atomic(os.path.join(directory, PLAN), plan.encode("utf-8", "surrogateescape"))
    node, cluster = HydraConfig.get(), spec.cluster
    logs = node.runtime.choices.get("hydra/job_logging", "default") != "default"
    acts = node.callbacks or node.job.env_set or node.job.chdir or logs
    several = spec.nodes is not None or (cluster is not None and cluster.nodes > 1)
    return not (user is not None or spec.locked or acts or several or _OTHERS.search(plan))


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
    plain = make_ready(spec, cfg, user, snapshot, directory)
    submission = Submission.of(
        *(cluster, directory),
        cwd=spec.runtime_cwd,
        plain=plain,
        snapshot=snapshot,
        holder=_HOLDER,
    )
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
