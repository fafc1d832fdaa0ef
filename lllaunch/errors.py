"""The exceptions of lllaunch, one tree, with fields, picklable; and its exit codes.

Every error names what was wrong with it in fields, so that a caller need not parse a message, and
carries the exit code (docs/reference/exit-codes.md) that ``python -m lllaunch`` ends with.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any, Literal

Code = Literal[
    "arguments",
    "base-60",
    "changed",
    "choice",
    "cluster",
    "compose",
    "cpus",
    "directory",
    "duration",
    "endpoint",
    "entrypoint",
    "file",
    "gpus",
    "in-use",
    "interpolation",
    "journal",
    "lock",
    "lock-edited",
    "lock-name",
    "mask",
    "missing",
    "more",
    "no-lock",
    "no-policy",
    "nodes",
    "not-allowed",
    "not-reviewed",
    "nproc",
    "number",
    "outside",
    "overrides",
    "own-app",
    "package",
    "pattern",
    "plan",
    "policy",
    "preload",
    "preflight",
    "preset",
    "ranks",
    "rerun",
    "reserved-variable",
    "resume",
    "secret",
    "signal",
    "size",
    "start-method",
    "sweeper",
    "text",
    "too-large",
    "trainjob",
    "type",
    "unknown-key",
    "unlocked-launcher",
    "unlocked-variable",
    "unread",
    "unused-key",
    "variable",
    "worker-variable",
    "yaml",
]
"""Kinds of what is wrong with inputs (docs/reference/diagnostics.md); they do not change."""


class ExitCode(IntEnum):
    """What the launcher's exit status means; 128+N stands for 'ended by signal N' beside these."""

    SUCCESS = 0  # every worker of the last attempt succeeded
    ERROR = 1  # Hydra could not compose the config, or lllaunch itself failed
    CONFIG = 2  # the ``launch`` config is wrong; nothing was started
    WORKERS_FAILED = 3  # and no attempt is left
    WATCHDOG = 4  # the watchdog ended the run: a hang, a time limit or a memory limit
    REFUSED = 5  # the plan is not the reviewed one, or not allowed; nothing was started
    SWEEP = 6  # a sweep finished, and not all of its jobs succeeded
    NO_PROGRESS = 7  # several attempts in a row failed and got no further


def for_signal(signum: int) -> int:
    """Returns the exit code of a run that signal ``signum`` ended: 128 + ``signum``."""
    return 128 + signum


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong with an input."""

    code: Code  # what programs decide by
    key: str
    value: str  # already redacted, as the user wrote it
    # what is wrong, as the predicate of a sentence (``does not exist``); empty with ``expected``
    message: str
    # what was probably meant (``did you mean 'all'?``), or empty; a command to copy stands in a
    # line of its own, behind a newline
    hint: str = ""
    file: str = ""  # that it stands in; empty where it stands in none, or in none that is known
    line: int = 0  # from 1; 0 where it is about the file as a whole
    # in place of the value, with the choices or an example: ``a mask (none, out, err, all, ...)``
    expected: str = ""

    @property
    def text(self) -> str:
        """What is said of the key: the only place where such a sentence is made."""
        if self.expected:
            sentence = f"expected {self.expected}, got {self.value}"
        else:
            sentence = f"{self.value} {self.message}" if self.value else self.message
        if self.hint.startswith("\n"):
            return f"{sentence}{self.hint}"
        return f"{sentence}; {self.hint}" if self.hint else sentence

    @property
    def place(self) -> str:
        """File and line as compilers write them."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def said(self) -> str:
        """Key, text and code, for where its place is told otherwise."""
        first, *more = (f"{self.key}: {self.text}" if self.key else self.text).split("\n")
        head = first.removesuffix(":")
        return "\n".join([f"{head} [{self.code}]{first[len(head) :]}", *more])

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" if self.place else self.said


class Unfit(ValueError):
    """A value is not what it should be; who knows its key makes a `Diagnostic` of it.

    ``detail`` is what exactly is wrong, or empty. Only that and ``hint`` may quote the value.
    """

    def __init__(
        self, expected: str = "", hint: str = "", detail: str = "", *, message: str = "", code: Code
    ) -> None:
        super().__init__(expected or message, hint, detail)
        self.expected, self.hint, self.detail = expected, hint, detail
        self.message, self.code = message, code

    def at(self, key: str, value: str, *, secret: bool = False) -> Diagnostic:
        """Return what is wrong with the value of a key; of a ``secret`` nothing is quoted."""
        detail, hint = ("", "") if secret else (self.detail, self.hint)
        message = f"{self.message}: {detail}" if self.message and detail else self.message
        if self.expected:
            hint = "; ".join(filter(None, (detail, hint)))
        return Diagnostic(self.code, key, value, message, hint, expected=self.expected)


class LaunchError(Exception):
    """What lllaunch raises on purpose; those that somebody tells apart are subclasses.

    Where their parts are read, too, they are dataclasses: the fields are the constructor's
    arguments, so that they survive pickling with all they know.
    """

    exit_code: int = ExitCode.ERROR

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code

    def __reduce__(self) -> Any:
        if not is_dataclass(self):
            return super().__reduce__()
        # not __dataclass_fields__, which has class variables in it
        return (type(self), tuple(getattr(self, each.name) for each in fields(self)))


@dataclass(eq=False)
class ConfigError(LaunchError):
    """The configuration is wrong; nothing was started."""

    problems: tuple[Diagnostic, ...]  # everything that is wrong, at least one
    exit_code = ExitCode.CONFIG

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(eq=False)
class SpawnerDied(LaunchError):
    """The spawner, the helper process that starts all workers, ended before its workers did."""

    pid: int
    status: int | None  # negative for a signal, None where it is not known
    detail: str = ""  # what it wrote last

    def __str__(self) -> str:
        how = "its connection closed" if self.status is None else f"exit status {self.status}"
        detail = f"\n{self.detail}" if self.detail else ""
        return f"the spawner (pid {self.pid}) died: {how}{detail}"


@dataclass(eq=False)
class PreloadFailed(LaunchError):
    """A module listed under ``preload`` could not be imported, or cannot be forked after it."""

    module: str
    reason: str  # one line
    traceback: str = ""
    exit_code = ExitCode.CONFIG

    def __str__(self) -> str:
        text = f"launch.preload: {self.module!r} could not be preloaded: {self.reason}"
        return f"{text}\n{self.traceback}" if self.traceback else text


@dataclass(eq=False)
class NotPicklable(LaunchError):
    """An argument or a return value cannot be sent between processes."""

    what: str  # such as ``argument 2 of worker 0``
    reason: str

    def __str__(self) -> str:
        return f"{self.what} cannot be pickled: {self.reason}"


@dataclass(eq=False)
class OutputError(LaunchError):
    """A file or directory of the run cannot be written or read."""

    path: str
    reason: str
    rank: int | None = None  # local rank of the worker that it belongs to, or None

    def __str__(self) -> str:
        whose = "" if self.rank is None else f" of worker {self.rank}"
        return f"{self.path!r}{whose}: {self.reason}"


def package_missing(package: str, feature: str) -> LaunchError:
    """Return what to raise where a package that only some features need is not installed."""
    text = f"{feature} needs a package that is missing: pip install {package}"
    return LaunchError(text, ExitCode.CONFIG)


class RendezvousFailed(LaunchError):
    """The nodes of a run could not meet, or lost each other where they cannot meet again."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}; {hint}" if hint else what)


@dataclass(eq=False)
class SnapshotFailed(LaunchError):
    """The code of a run could not be set aside, or a snapshot of it not be removed."""

    path: str
    reason: str
    hint: str = "cluster.snapshot=none goes without"

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"no snapshot of the code in {self.path!r}: {self.reason}{hint}"
