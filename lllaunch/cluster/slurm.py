"""All that is said to Slurm, and what it answers: its commands, each within a bounded time.

What Slurm does with a job, and which of its answers tell what, stands in docs/design/slurm.md.
Commands that only ask are repeated while the controller is busy. ``sbatch`` never is: who does not
know whether it came through finds the job by its working directory (`queued`).

Whatever asks or orders raises `SlurmMissing` where this machine has no Slurm, and `SlurmFailed`
where there was no answer or nothing was done.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec.structs import astuple

from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError, OutputError
from lllaunch.spec import Cluster
from lllaunch.text import shorten

TIMEOUT: float = 60.0
"""How long a command may take, seconds. Slurm's own commands give up before."""

PAUSES: tuple[float, ...] = (1.0, 2.0, 4.0)
"""Before a question is put again, seconds; so many times it is."""

# Neither can be typed, and a name or directory has to be asked for in one line.
_BETWEEN, _AFTER = "\x1f", "\x1e"
_NOTHING = {"(null)", "n/a", "N/A"}
# %i id, %T state, %r reason, %N nodes, %Z working directory, %j name, %S start
_COLUMNS = _BETWEEN.join(("%i", "%T", "%r", "%N", "%Z", "%j", "%S")) + _AFTER

_UNKNOWN_JOB = re.compile(r"Invalid job id specified|Invalid job array", re.IGNORECASE)
_BUSY = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Connection (?:refused|timed out|reset)"
    r"|Zero Bytes were transmitted|temporarily unable|try again|Resource temporarily unavailable"
    r"|Transport endpoint is not connected|connect failure",
    re.IGNORECASE,
)
# What was never sent may be sent again, whatever it asks for.
_NOT_SENT = re.compile(r"Unable to contact slurm controller|Connection refused", re.IGNORECASE)
# What is wrong with what was asked for, in the words of sbatch.
_MISTAKE = re.compile(
    r"\binvalid\b(?!.*(?:credential|authentication|protocol|user id|job id))"
    r"|unrecogni[sz]ed option|requires an argument"
    r"|requested (?:node|partition|topology) configuration|cannot? be satisfied"
    r"|can not be satisfied|more processors requested|node count specification"
    r"|specification (?:is )?(?:invalid|error)|requested time limit|unable to parse",
    re.IGNORECASE,
)


@dataclass(eq=False)
class SlurmFailed(LaunchError):
    """A command of Slurm, or its beginning, failed; what it said is one line."""

    command: str
    said: str

    def __str__(self) -> str:
        return f"`{self.command}`: {self.said}"


@dataclass(eq=False)
class SubmitFailed(SlurmFailed):
    """A job was not accepted."""

    # 2 where what was asked for is wrong, else 1
    exit_code: int = int(ExitCode.ERROR)
    unsure: bool = False  # whether the job may be there nevertheless, as there was no answer

    def __str__(self) -> str:
        maybe = "; the job may have been accepted nevertheless" if self.unsure else ""
        return f"{super().__str__()}{maybe}"


class SlurmMissing(LaunchError):
    """Something that jobs are submitted with is not there."""

    exit_code = ExitCode.CONFIG


class QueuedJob(NamedTuple):
    """A job that is in the queue: it waits, runs or is ending."""

    id: str  # ``123``, or ``123_4`` of an array's task
    state: str  # as ``squeue`` calls it: ``PENDING``, ``RUNNING``, ``COMPLETING``
    reason: str  # why it is in that state; ``None`` is Slurm's word for no reason
    nodes: str  # a list of nodes as `expand_hosts` reads it, empty if it has none
    directory: str
    name: str
    # when it started, or may start, seconds since the epoch; None if unknown
    start_time: float | None = None


class JobFacts(NamedTuple):
    """What Slurm knows of a job, for some minutes after its end, too.

    Times are seconds since the epoch.
    """

    state: str  # ``PENDING``, ``RUNNING``, ``COMPLETING``, ``TIMEOUT``
    reason: str = ""  # why it is in that state; ``None`` is Slurm's word for no reason
    # how often it was put back into the queue. It grows before the processes of the job are
    # signalled
    restarts: int = 0
    end_time: float | None = None  # when it ended, or will be ended; None if unknown
    # when another job began to take its place; None if none did, or if it is back in the queue
    preempt_time: float | None = None


Ending = Literal["requeued", "preempted", "timeout", "node_failure", "cancelled"]


# Commands


class _Answer(NamedTuple):
    command: str
    status: int
    out: str
    error: str

    @property
    def line(self) -> str:
        """What it said of a failure, in one line."""
        lines = [*filter(None, map(str.strip, self.error.splitlines()))]
        if not lines:
            return f"exit status {self.status}"
        # the program's name is said once
        return "; ".join([lines[0], *(_NAME.sub("", line) for line in lines[1:])])


_NO_ANSWER = "no answer within {:g} s"
_NAME = re.compile(r"^(?:sbatch|squeue|scontrol|scancel)(?: error)?: (?:error: )?")


def available() -> bool:
    """Return whether jobs can be submitted from here, as far as Slurm's commands go."""
    return shutil.which("sbatch") is not None


def expect_available() -> None:
    """Raise `SlurmMissing` if nothing can be submitted from here."""
    _program("sbatch")


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        where = "submit from a login node of the cluster, or run here with cluster=null"
        raise SlurmMissing(f"there is no {name} on PATH, so no Slurm; {where}")
    return path


def _run(
    *words: str,
    given: str | None = None,
    environ: Mapping[str, str] | None = None,
    holding: Collection[int] = (),
    apart: bool = False,
) -> _Answer:
    """Call a command once; ``holding`` are descriptors that it has open.

    ``given``: its standard input. ``environ``: its environment; None: that of a command that asks.
    ``apart``: whether it is to get no signal of this process's terminal.
    """
    path = _program(words[0])
    shown = shorten(shlex.join(word for word in words if _BETWEEN not in word), 120)
    # no pipe: who writes to one that is closed gets SIGPIPE, and a verb ends of that
    with tempfile.TemporaryFile() as file:
        file.write((given or "").encode("utf-8", "surrogateescape"))
        file.seek(0)
        done = subprocess.run(
            [path, *words[1:]],
            stdin=file,
            capture_output=True,
            # a directory may be any bytes
            encoding="utf-8",
            errors="surrogateescape",
            env=_environ() if environ is None else environ,
            pass_fds=tuple(holding),
            start_new_session=apart,
            timeout=TIMEOUT,
            check=False,
        )
    return _Answer(shown, done.returncode, done.stdout, done.stderr)


def _environ() -> dict[str, str]:
    """Return the environment of a command that asks: without what would change its answers."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_TIME_FORMAT"))
    }
    # seconds since the epoch, whatever the time zone
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def _ask(
    *words: str, again: re.Pattern[str] = _BUSY, known: re.Pattern[str] | None = None
) -> _Answer:
    """Call a command until the controller has time for it: again after what it said then.

    ``known``: a failure that says so is an answer, too.
    """
    for pause in (*PAUSES, None):
        try:
            answer = _run(*words)
        except subprocess.TimeoutExpired:
            raise SlurmFailed(words[0], _NO_ANSWER.format(TIMEOUT)) from None
        if answer.status == 0 or (known is not None and known.search(answer.error)):
            return answer
        if pause is None or not again.search(answer.error):
            break
        time.sleep(pause)
    raise SlurmFailed(answer.command, answer.line)


# Questions


def queued(job: str = "") -> dict[str, QueuedJob]:
    """Return the jobs that wait, run or are ending, by their ids: all of this user, or one.

    The id of an array stands for all its tasks.
    """
    whose = ("--jobs", job) if job else ("--user", str(os.getuid()))
    words = ("squeue", "--noheader", "--array", "--format", _COLUMNS, *whose)
    return {each.id: each for each in parse_queue(_ask(*words, known=_UNKNOWN_JOB).out)}


def parse_queue(text: str) -> Iterator[QueuedJob]:
    """Yields the jobs in the output of ``squeue``. Pure."""
    for record in text.split(_AFTER):
        fields = record.lstrip("\n").split(_BETWEEN)
        if len(fields) == len(QueuedJob._fields):
            *known, start = ("" if each in _NOTHING else each for each in fields)
            yield QueuedJob._make([*known, _seconds(start)])


def job_facts(id: str) -> JobFacts | None:  # noqa: A002 - as Slurm calls it
    """Return what Slurm knows of a job; None if it does not know it (any more).

    ``id``: of the job, or ``123_4`` of an array's task. Each task also has an id as other jobs
    have, which is not to be used: that of the last task is that of the whole array.
    """
    columns = ",".join(f"{name}:{_WIDTH}" for name in _FACTS)
    words = ("squeue", "--noheader", "--array", "--states=all", "--jobs", id, "--Format", columns)
    line = _ask(*words, known=_UNKNOWN_JOB).out.partition("\n")[0]
    found = [line[at : at + _WIDTH].strip() for at in range(0, len(line), _WIDTH)]
    if len(found) < len(_FACTS):
        return None
    state, reason, restarts, end, preempted = found
    return JobFacts(state, reason, int(_seconds(restarts) or 0), _seconds(end), _seconds(preempted))


# As wide as none of them is: where the columns end nothing else says.
_FACTS, _WIDTH = ("State", "Reason", "RestartCnt", "EndTime", "PreemptTime"), 200


def _seconds(text: str) -> float | None:
    # N/A, None, Unknown
    return float(text) if text.isdecimal() and int(text) else None


def ending(facts: JobFacts, restart_count: int) -> Ending | None:
    """Returns why a job is being ended, from within it. Pure.

    Slurm says whether a job comes back, not why: another job that takes its place, somebody's
    ``scontrol requeue`` and a node that is lost look the same ("requeued"). So does what the job
    itself has asked for.

    ``facts``: of the job, from after the signal. ``restart_count``: ``SLURM_RESTART_COUNT`` as the
    process found it, 0 without it. What is returned:

    - "requeued": it starts again by itself, later, whatever its processes do
    - "preempted": another job takes its place; it may run until its `JobFacts.end_time`. A job that
      ends before does not come back by itself
    - "timeout": its time is over
    - "node_failure": a node is lost, and it does not start again by itself
    - "cancelled": somebody has cancelled it, and it must not be put back
    - None: it is not being ended, and the signal was all there is; or its state is unknown
    """
    if facts.restarts > restart_count:
        return "requeued"
    if facts.preempt_time is not None:
        return "preempted"
    if facts.state in {"RUNNING", "SUSPENDED", "PENDING", "CONFIGURING"}:
        return None
    if facts.reason == "TimeLimit" or facts.state == "TIMEOUT":
        return "timeout"
    if facts.reason == "NodeDown" or facts.state == "NODE_FAIL":
        return "node_failure"
    # one that newer versions of Slurm may have says nothing
    return "cancelled" if facts.state in {"COMPLETING", "CANCELLED", "DEADLINE"} else None


def has_down_node(nodelist: str) -> bool:
    """Return whether one of these nodes is down: Slurm has missed it, or somebody has set it down.

    ``nodelist``: names of nodes, as ``SLURM_JOB_NODELIST`` has them.
    """
    answer = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodelist}", "--format=%T")
    # that of a node that does not answer is `down*`
    return any(state.startswith("down") for state in answer.out.split())


def max_array_size() -> int:
    """Return how many tasks an array may have; Slurm's default where the site does not say."""
    answer = _ask("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize *= *(\d+)", answer.out, re.MULTILINE)
    return int(found[1]) if found else 1001


# Batch files


_SUBMITIT_NAMES = {
    "timeout_min": "time",
    "mem_gb": "mem",
    "name": "job_name",
    "num_gpus": "gpus_per_node",
}
# What submitit knows and does not make an option of.
_NO_OPTIONS = frozenset(
    {
        *("setup", "setup_strict", "teardown", "srun_args", "additional_parameters"),
        *("array_parallelism",),
        *("signal_delay_s", "max_num_timeout", "stderr_to_stdout", "use_srun", "nodes"),
        *("tasks_per_node", "ntasks_per_node", "submitit_folder"),
    }
)


def batch_text(
    cluster: Cluster,
    *,
    command: Sequence[str],
    directory: str,
    output: str,
    name: str,
    array: tuple[int, int] | None = None,
    retries: bool = False,
) -> str:
    """Return a batch file that runs a command once on each node.

    ``output``: path of the file for what all of it writes; in its last part ``%A`` is the id of an
    array and ``%a`` the number of a task. ``name``: unless the settings have one. ``array``: number
    of tasks, and how many of them may run at the same time. ``retries``: whether a failure may put
    it back, whatever ``requeue`` says.

    Raises:
        ConfigError: a value cannot be written into a batch file.
    """
    settings = cluster.settings
    options = _options(settings, name)
    folder, _, file = output.rpartition("/")
    # What is asked for must not decide what lllaunch relies on.
    ours: dict[str, Any] = {
        "nodes": cluster.nodes,
        "ntasks-per-node": 1,
        "signal": f"USR2@{cluster.signal_delay_s}",
        "open-mode": "append",
        "output": f"{folder.replace('%', '%%')}/{file}",
        "chdir": directory,
    }
    comes_back = retries or any(astuple(cluster.requeue))
    ours["requeue" if comes_back else "no-requeue"] = True
    if array is not None:
        ours["array"] = f"0-{array[0] - 1}%{array[1]}"
    refused = {*ours, "requeue", "no-requeue", "array", "error"}
    asked = {key: value for key, value in options.items() if key not in refused} | ours
    for key, value in asked.items():
        if any(character in str(value) for character in "\r\n\0"):
            message = f"cannot be an option of sbatch, as --{key} would be: it has several lines"
            # what people have set may be a secret
            shown = repr(value) if key in ours else ""
            asker = "the run's directory" if key in ours else f"cluster.{key.replace('-', '_')}"
            raise ConfigError((Diagnostic("cluster", asker, shown, message),))
    directives = (
        f"#SBATCH --{key}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for key, value in sorted(asked.items())
    )
    lines = ["#!/bin/bash", "", *directives]
    setup, teardown = (_lines(settings.get(key)) for key in ("setup", "teardown"))
    if setup and settings.get("setup_strict", True):
        setup = [*_STRICTLY, *setup, "setup_done=1; set +e"]
    words = ["srun", "--unbuffered", "--ntasks-per-node=1"]
    # Slurm 22.05 to 23.02 do not take it over from sbatch.
    words += [f"--cpus-per-task={cpus}"] if (cpus := options.get("cpus-per-task")) else []
    # One task's end is for the other tasks' supervisors to act on.
    words += ["--kill-on-bad-exit=0", "--wait=0", *_lines(settings.get("srun_args"))]
    srun = shlex.join([*words, *_DEAF, *command])
    # At the job's end all of it gets SIGTERM. srun then stays until its tasks have ended; a shell
    # would not, so there is none, or it waits for srun.
    run = ["trap : TERM", srun, "status=$?"] if teardown else [f"exec {srun}"]
    after = [*teardown, "exit $status"] if teardown else []
    for part in (setup, run, after):
        lines += ["", *part] if part else []
    return "\n".join(lines) + "\n"


_SETUP_FAILED = (
    "lllaunch: cluster.setup ended the job with exit code $?; cluster.setup_strict=false goes on "
    "after a line that fails"
)
# ERR would not do: what fails within a function, such as `module`, ends the shell without it.
_STRICTLY = (
    "set -e",
    f'trap \'case ${{setup_done-}} in "") echo "{_SETUP_FAILED}" >&2 ;; esac\' EXIT',
)


def _options(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options of sbatch that were asked for, by their names; what is off is left out."""
    named = {
        _SUBMITIT_NAMES.get(key, key): value
        for key, value in settings.items()
        if key not in _NO_OPTIONS and value is not None
    }
    size = settings.get("mem_gb")
    if isinstance(size, (int, float)):
        whole = size == int(size)
        named["mem"] = f"{int(size)}GB" if whole else f"{math.ceil(size * 1024)}MB"
    named.setdefault("job_name", name)
    named.update(settings.get("additional_parameters") or {})
    options = {key.replace("_", "-"): value for key, value in named.items()}
    return {
        key: value for key, value in options.items() if value is not None and value is not False
    }


def _lines(given: Any) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else [str(line) for line in given]


# Slurm's announcement of the end may come before lllaunch is there to take note of it.
_DEAF = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")


# Orders


def submit(text: str, path: str, *, holding: Collection[int] = ()) -> str:
    """Write a batch file, which only this user may read, and submit it; return the job's id.

    It is tried once. ``holding``: descriptors that sbatch has open until it has ended, also without
    this process.

    Raises:
        OutputError: the file cannot be written.
        SubmitFailed: the job was not accepted, or nobody knows.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(fd, 0o700)  # of a file that was there, too
            file.write(text)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    words = ("sbatch", "--parsable", path)
    try:
        answer = _run(*words, environ=_submitting(text), holding=holding, apart=True)
    except subprocess.TimeoutExpired as error:
        # what a command had said when it was given up is bytes, whatever it was called with
        known = error.stderr.decode(errors="surrogateescape") if error.stderr else ""
        told = _Answer(shlex.join(words), 1, "", known)
        # of a full controller it says so, and tries again by itself for longer than this waits
        said = told.line if is_full(told.error) else _NO_ANSWER.format(TIMEOUT)
        raise SubmitFailed(told.command, said, unsure=True) from None
    # 123, or 123;cluster
    id_, *_ = answer.out.strip().split(";")
    if answer.status == 0 and id_.isdecimal():
        return id_
    if answer.status == 0:
        said = f"expected the id of a job, got {answer.out.strip()!r}"
        raise SubmitFailed(answer.command, said, unsure=True)
    mistake = is_mistake(answer.error)
    # it may have tried several times, of which the last counts
    last = answer.error.rstrip().rpartition("\n")[2]
    refused = mistake or is_full(last) or _NOT_SENT.search(last)
    code = ExitCode.CONFIG if mistake else ExitCode.ERROR
    raise SubmitFailed(answer.command, _line(answer, text), int(code), unsure=not refused)


def _line(answer: _Answer, text: str) -> str:
    """Return what sbatch said, with what it may be about where it does not say that."""
    asked = [
        f"cluster.{name.replace('-', '_')}"
        for name in _DIRECTIVE.findall(text)
        if name.startswith(_OF_NODES)
    ]
    if not asked or "Requested node configuration" not in answer.error:
        return answer.line
    return f"{answer.line}; hint: no node has what {', '.join(asked)} ask for"


# Options that choose nodes.
_OF_NODES = ("nodelist", "constraint", "partition", "gres", "gpus", "mem", "cpus", "excl")

_ENVIRONMENT_NAMES = {
    "time": "TIMELIMIT",
    "mem": "MEM_PER_NODE",
    "array": "ARRAY_INX",
    "no-requeue": "REQUEUE",
    "requeue": "NO_REQUEUE",
}
_DIRECTIVE = re.compile(r"^#SBATCH --([a-z-]+)", re.MULTILINE)


def _submitting(text: str) -> dict[str, str]:
    """Return the environment to submit a batch file in.

    Variables count more than what stands in the file, so those are left out that contradict it. A
    launcher may itself be in a job, whose variables would be taken for those of the new one.
    """
    names = _DIRECTIVE.findall(text)
    said = {
        *(f"SBATCH_{name.replace('-', '_').upper()}" for name in names),
        *(f"SBATCH_{_ENVIRONMENT_NAMES[name]}" for name in names if name in _ENVIRONMENT_NAMES),
    }
    in_job = "SLURM_JOB_ID" in os.environ
    return {
        name: value
        for name, value in os.environ.items()
        if name not in said
        and not (in_job and name.startswith(_OF_A_JOB) and name not in _OF_THE_SITE)
    }


_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")
_OF_THE_SITE = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT"})


def is_mistake(said: str) -> bool:
    """Returns whether what sbatch said is about what was asked for. Pure."""
    return bool(_MISTAKE.search(said)) and not _BUSY.search(said)


def test_only(text: str) -> str | None:
    """Return what is wrong with what a batch file asks for, one line; None if nobody can say."""
    try:
        answer = _run("sbatch", "--test-only", given=text, environ=_submitting(text))
    except subprocess.TimeoutExpired:
        return None
    return _line(answer, text) if answer.status and is_mistake(answer.error) else None


def cancel(ids: Collection[str], *, signal: str | None = None, pending_only: bool = False) -> None:
    """Cancel jobs, or signal them; those that are over or unknown are left as they are.

    ``ids``: of jobs, of arrays, or ``123_4`` of an array's task. ``signal``: name of a signal
    (``TERM``) for the processes of their steps, which does not cancel them; None: they are
    cancelled. ``pending_only``: leave those that have started.
    """
    if not ids:
        return
    words = ["scancel", *([f"--signal={signal}"] if signal else [])]
    words += ["--state=PENDING"] if pending_only else []
    # a signal that came through is not sent twice
    again = _BUSY if signal is None else _NOT_SENT
    answer = _ask(*words, *ids, again=again, known=_OVER)
    others = [line for line in answer.error.splitlines() if not _OVER.search(line)]
    if answer.status and any(map(str.strip, others)):
        raise SlurmFailed(answer.command, answer._replace(error="\n".join(others)).line)


_OVER = re.compile(r"already completing or completed|Invalid job id", re.IGNORECASE)


def requeue(id: str) -> None:  # noqa: A002
    """Put a job back into the queue, which ends it if it runs: all its processes get SIGTERM.

    It does so with a job that somebody has cancelled or whose time is over, too, as long as it is
    ending. It refuses jobs with ``--no-requeue``, and those that are back in the queue.

    ``id``: of the job; of an array's task ``123_4``: the id of an array would put all of it back.
    """
    # The second time it would put back what has started again.
    _ask("scontrol", "requeue", id, again=_NOT_SENT)


_FULL = re.compile(
    r"SubmitJob|MaxSubmit|job submit limit|MaxJobCount|job count|temporarily unable to accept"
    r"|job queue full",
    re.IGNORECASE,
)


def is_full(said: str) -> bool:
    """Returns whether sbatch said that there are too many jobs in the queue by now. Pure."""
    return bool(_FULL.search(said))


def is_silent(said: str) -> bool:
    """Returns whether a command said that the controller did not answer. Pure."""
    return bool(_BUSY.search(said)) or said.startswith(_NO_ANSWER.partition("{")[0])
