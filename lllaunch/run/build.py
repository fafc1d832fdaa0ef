"""What a run was built from: the commit, whether the tree was changed, versions of packages.

It becomes the ``build`` of result.json. Git is asked by its program, which may take its time on a
large tree or a slow disk; so a run starts the question when it begins and takes the answer when it
ends. Nothing here makes a run fail: what cannot be found out is null, and ``git_problem`` says why.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lllaunch.documents import Record

if TYPE_CHECKING:
    from lllaunch.spec import LaunchSpec

_KILLED_WITHIN = 1.0  # seconds
# Nothing of the repository's is to be run, and nothing to be written in it.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# They speak of another tree than that of the directory, as in a hook; or write traces.
_DROPPED = {
    f"GIT_{name}"
    for name in (
        *("DIR", "WORK_TREE", "INDEX_FILE", "PREFIX", "COMMON_DIR", "NAMESPACE"),
        *("OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "IMPLICIT_WORK_TREE"),
        *("GRAFT_FILE", "SHALLOW_FILE"),
    )
}
_SET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}

PATIENCE = 5.0
"""How long git may take, seconds."""

PACKAGES = ("lllaunch", "hydra-core", "omegaconf", "torch")
"""Packages whose versions matter to every run, where they are installed."""

NO_REPOSITORY = "not in a git repository"

_SHORT_PATIENCE = 1.0  # for a question that reads two small files
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=normal")
_COMMIT = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")


class SnapshotPlace(Record, frozen=True):
    """Where the code is that a run has run, if that was set aside (`lllaunch.run.snapshot`)."""

    path: str
    diff: str
    tree_commit: str


class Build(Record, frozen=True):
    """What a run was built from; null is what is not known."""

    commit: str | None = None  # full hash
    dirty: bool | None = None
    branch: str | None = None  # null also if none is checked out
    changed: int | None = None  # tracked files that differ from the commit
    untracked: int | None = None  # files and whole directories, neither tracked nor ignored
    git_problem: str | None = None  # why some of these are null, else null
    versions: Mapping[str, str] = {}  # by package
    python: str = ""
    implementation: str = ""
    snapshot: SnapshotPlace | None = None


class Host(Record, frozen=True):
    """The machine that a run was on; null is what is not known."""

    hostname: str = ""
    kernel: str = ""
    cpus: int | None = None  # that the launcher may use
    memory: int | None = None  # bytes
    memory_limit: int | None = None  # bytes
    python: str = ""


class Git:
    """A git that runs, in a session of its own so that no signal of the terminal reaches it.

    Of the user's ``environ`` what would lead it elsewhere is left out; ``variables`` come on top.

    Raises:
        OSError: it cannot be started; FileNotFoundError: it is not installed.
    """

    def __init__(
        self,
        cwd: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        path = environ.get("PATH", os.defpath)
        program, setpriv = (shutil.which(each, path=path) for each in ("git", "setpriv"))
        if program is None:
            raise FileNotFoundError("git")
        import subprocess  # noqa: PLC0415 - who only shows runs asks nothing

        # a launcher that is killed takes it along
        with_launcher = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
        kept = {
            name: value
            for name, value in environ.items()
            if name not in _DROPPED and not name.startswith("GIT_TRACE")
        }
        self._process = subprocess.Popen(
            [*with_launcher, program, "-C", cwd, *_QUIET, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **_SET, **(variables or {})},
            start_new_session=True,
            encoding="utf-8",
            errors="surrogateescape",
        )

    @property
    def status(self) -> int | None:
        """Its exit status; None before `end`."""
        return self._process.returncode

    def end(self, timeout: float) -> tuple[str, str] | None:
        """Waits for it, then kills it and what it started; to be called once.

        Returns its standard output and standard error; None if it did not end within ``timeout``
        seconds.
        """
        import subprocess  # noqa: PLC0415 - as above

        process = self._process
        try:
            return process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:  # also where a signal interrupts who waits
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                # if it hangs in the kernel, it is left to that
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_WITHIN)
                for pipe in filter(None, (process.stdout, process.stderr)):
                    pipe.close()


def versions_of(names: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Returns the versions of packages by name, those that are not installed left out.

    ``path`` is ``sys.path`` if None. What `importlib.metadata` takes 20 ms to be imported for are
    the names of directories.
    """
    known: dict[str, str] = {}
    for entry in sys.path if path is None else path:
        with contextlib.suppress(OSError):  # not there, or an archive
            for info in sorted(os.listdir(entry or os.curdir)):
                if info.endswith((".dist-info", ".egg-info")):
                    name, _, version = info.rpartition(".")[0].partition("-")
                    known.setdefault(_normalized(name), version.partition("-py")[0])
    found = {name: known.get(_normalized(name), "") for name in dict.fromkeys(names)}
    return {name: version for name, version in found.items() if version}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def build_facts(
    cwd: str, environ: Mapping[str, str] | None = None, *, own: Sequence[str] = ()
) -> Build:
    """Returns what is built from a directory, as `BuildQuery` does; waits `PATIENCE` at most."""
    return BuildQuery(cwd, environ).result(own=own)


def modules_of(spec: LaunchSpec) -> list[str]:
    """Modules that a config names: what they belong to is worth knowing the version of."""
    entrypoint = spec.entrypoint
    named = [entrypoint.name] if entrypoint.form in {"function", "module"} else []
    return [*spec.imports, *named]


class BuildQuery:
    """A question that git works on; takes about a millisecond to ask, and raises nothing.

    The thread that asks it must live until `result` or `close`: git ends with it.
    """

    def __init__(self, cwd: str, environ: Mapping[str, str] | None = None) -> None:
        self._cwd = cwd
        self._environ = dict(os.environ) if environ is None else environ
        self._tree: Build | None = None
        self._git: Git | None = None
        try:
            self._git = Git(cwd, _STATUS, self._environ)
        except OSError as error:
            self._tree = Build(git_problem=refusal(error))

    def result(
        self,
        timeout: float = PATIENCE,
        *,
        modules: Sequence[str] = (),
        own: Sequence[str] = (),
    ) -> Build:
        """Returns what a run is built from; idempotent.

        ``timeout``: how long to wait for git from now on, seconds. ``modules``: dotted names; the
        versions of packages that are called as they are come, too. ``own``: directories that runs
        write to. An untracked directory that holds one of them, and not ``cwd``, is taken for
        output: it does not make the tree dirty.
        """
        if self._tree is None:
            self._tree = self._answer(timeout, own)
        tops = (module.partition(".")[0] for module in modules)
        return replace(
            self._tree,
            versions=versions_of([*PACKAGES, *tops]),
            python=sys.version.split()[0],
            implementation=sys.implementation.name,
        )

    def close(self) -> None:
        """Ends git if it still runs; idempotent, and not needed after `result`."""
        if self._git is not None:
            self._git.end(0.0)
            self._git = None

    def _answer(self, timeout: float, own: Sequence[str]) -> Build:
        git, self._git = self._git, None
        if git is None:
            return Build(git_problem="nobody waited for git")
        answer = git.end(timeout)
        if answer is not None:
            return parse_status(*answer, cwd=self._cwd, own=own)
        problem = "git status took too long"
        with contextlib.suppress(OSError):
            short = Git(self._cwd, _COMMIT, self._environ).end(_SHORT_PATIENCE)
            lines = short[0].split("\n") if short else []
            # a hash of SHA-1, or a longer one
            if len(lines) >= 2 and len(lines[0]) >= 40:
                branch = None if lines[1] == "HEAD" else lines[1]
                return Build(commit=lines[0], branch=branch, git_problem=problem)
        return Build(git_problem=problem)


def refusal(error: OSError) -> str:
    """Returns why git could not be started."""
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    return f"git cannot be started: {error.strerror or error}"


def parse_status(told: str, errors: str, *, cwd: str, own: Sequence[str] = ()) -> Build:
    """Returns what ``git status --porcelain=v2 --branch -z`` says; reads no file but .git."""
    entries = told.split("\0")
    heads = dict(
        entry[2:].partition(" ")[::2] for entry in entries if entry.startswith("# branch.")
    )
    if "branch.oid" not in heads:
        return Build(git_problem=complaint(errors))
    commit, branch = heads["branch.oid"], heads.get("branch.head")
    unborn = commit == "(initial)"
    changed = sum(entry.startswith(("1 ", "2 ", "u ")) for entry in entries)
    strange = [entry[2:] for entry in entries if entry.startswith("? ")]
    if strange and own:
        here = top = os.path.realpath(cwd)
        while not os.path.lexists(os.path.join(top, ".git")) and top != "/":
            top = os.path.dirname(top)
        outputs = tuple(f"{os.path.realpath(path)}/" for path in own)
        strange = [
            name
            for name in strange
            if not name.endswith("/")
            or f"{here}/".startswith(path := os.path.join(top, name))
            or not any(output.startswith(path) for output in outputs)
        ]
    return Build(
        commit=None if unborn else commit,
        dirty=bool(changed or strange),
        branch=None if branch == "(detached)" else branch,
        changed=changed,
        untracked=len(strange),
        git_problem="there is no commit yet" if unborn else None,
    )


def complaint(errors: str) -> str:
    """Returns what git said against it, in one line; hints and progress are left out."""
    lines = [line.strip() for line in errors.splitlines()]
    said = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    text = "; ".join(line.partition(": ")[2] or line for line in said if line)
    if text.startswith("not a git repository"):
        return NO_REPOSITORY
    return text[:500] or "it said nothing"
