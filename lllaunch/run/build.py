"""What a run was built from: the commit, whether the tree was changed, versions of packages.

It becomes the ``build`` of result.json. Git is asked by its program, which may take its time on a
large tree or a slow disk; so a run starts the question when it begins and takes the answer when it
ends. Nothing here makes a run fail: what cannot be found out is null, and ``git_problem`` says why.

Versions are read from the files that `importlib.metadata` reads: importing that takes 40 ms, and
asking it which package a module belongs to longer still. No package is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

from lllaunch.linux.process import open_pidfd, wait_readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_KILLED_WITHIN = 1.0  # seconds
_MOST = 16 * 1024 * 1024  # bytes of an answer
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


class Git:
    """A git that runs, in a session of its own so that no signal of the terminal reaches it.

    Args:
        environ: of the user; what would lead it elsewhere is left out.
        variables: what it finds in its environment besides, whatever the user has there.

    Attributes:
        status: its exit status, negative for a signal; None before `end`, or if it is not known.

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
        program = _which("git", environ)
        if program is None:
            raise FileNotFoundError("git")
        command = [program, "-C", cwd, *_QUIET, *arguments]
        # a launcher that is killed takes it along
        setpriv = _which("setpriv", environ)
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        kept = {
            name: value
            for name, value in environ.items()
            if name not in _DROPPED and not name.startswith("GIT_TRACE")
        }
        # files rather than pipes: it need not wait for anybody who reads
        self._files = [os.memfd_create("git", os.MFD_CLOEXEC) for _ in range(2)]
        self._pidfd: int | None = None
        self.status: int | None = None
        try:
            # not subprocess: its import takes longer than all of this
            self._pid = os.posix_spawn(
                command[0],
                command,
                {**kept, **_SET, **(variables or {})},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._files[0], 1),
                    (os.POSIX_SPAWN_DUP2, self._files[1], 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT),
            )
        except BaseException:
            self._close()
            raise
        with contextlib.suppress(OSError):
            self._pidfd = open_pidfd(self._pid)

    def end(self, timeout: float, most: int = _MOST) -> tuple[str, str] | None:
        """Waits for it, then kills it and what it started; to be called once.

        Args:
            timeout: how long to wait, seconds.
            most: how much of each stream is read, bytes.

        Returns:
            Its standard output and standard error, None if it did not end in time.
        """
        ended = False
        try:
            ended = self._wait(timeout)
        finally:
            if not ended:  # also where a signal interrupts who waits
                with contextlib.suppress(OSError):
                    os.killpg(self._pid, signal.SIGKILL)
                self._wait(_KILLED_WITHIN)  # if it hangs in the kernel, it is left to that
            with contextlib.suppress(ChildProcessError):  # of a process this one was forked from
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                self.status = os.waitstatus_to_exitcode(status) if pid else None
            written = [
                os.pread(fd, min(os.fstat(fd).st_size, most), 0).decode(errors="surrogateescape")
                for fd in self._files
            ]
            self._close()
        return (written[0], written[1]) if ended else None

    def _wait(self, seconds: float) -> bool:
        if self._pidfd is None:
            return False
        return wait_readable(self._pidfd, seconds)

    def _close(self) -> None:
        for fd in (*self._files, self._pidfd):
            if fd is not None:
                os.close(fd)


def _which(program: str, environ: Mapping[str, str]) -> str | None:
    for directory in os.get_exec_path(environ):
        path = os.path.join(directory, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    return None


_INFO = (".dist-info", ".egg-info")
_HEAD = 64 * 1024  # bytes; the version is among the first lines


def versions_of(
    packages: Iterable[str], modules: Iterable[str] = (), path: Sequence[str] | None = None
) -> dict[str, str]:
    """Returns the versions of packages by name, those that are not installed left out.

    Args:
        modules: dotted names of modules; the distributions that hold them come too. Modules of
            Python itself, and those that no installer has put there, belong to none.
        path: where to look; ``sys.path`` if None.
    """
    installed = _Installed(sys.path if path is None else path)
    wanted = {_normalized(name): name for name in packages}
    for top in sorted({module.partition(".")[0] for module in modules}):
        if top and top not in sys.stdlib_module_names:
            found = installed.owner(top)
            if found is not None:
                wanted.setdefault(_normalized(found), found)
    versions = {
        name: _field(installed.places[key], "Version")
        for key, name in wanted.items()
        if key in installed.places
    }
    return {name: version for name, version in versions.items() if version}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Installed:
    """The distributions on a path, the first of each name."""

    def __init__(self, path: Sequence[str]) -> None:
        self._entries: dict[str, list[str]] = {}
        self.places: dict[str, str] = {}
        for entry in dict.fromkeys(each or os.getcwd() for each in path):
            names: list[str] = []
            with contextlib.suppress(OSError):  # not there, or an archive
                names = os.listdir(entry)
            self._entries[entry] = names
            for name in sorted(names):
                if name.endswith(_INFO):
                    key = _normalized(name.rpartition(".")[0].partition("-")[0])
                    self.places.setdefault(key, os.path.join(entry, name))

    def owner(self, top: str) -> str | None:
        """The name of the distribution that a top-level module belongs to, None if to none."""
        likely = self.places.get(_normalized(top))
        for entry, names in self._entries.items():
            if any(name == top or name.startswith(f"{top}.") for name in names):
                beside = [each for each in self.places.values() if os.path.dirname(each) == entry]
                for place in sorted(beside, key=lambda place: place != likely):
                    if _claims(place, top):
                        return _field(place, "Name") or None
                break
        # one that is installed as editable lies elsewhere, as in a user's checkout
        place = likely or ""
        if place and b'"editable"' in _read(os.path.join(place, "direct_url.json")):
            return _field(place, "Name") or None
        return None


def _claims(place: str, top: str) -> bool:
    """Whether a distribution says that a module is its own."""
    listed = _read(os.path.join(place, "top_level.txt")).decode(errors="replace").split()
    if listed:
        return top in listed
    record = b"\n" + _read(os.path.join(place, "RECORD"), None)
    return any(f"\n{top}{mark}".encode() in record for mark in ("/__init__.", "/", ".py,", "."))


def _field(place: str, name: str) -> str:
    """A field of a distribution's metadata, empty if it is not there."""
    for file in ("METADATA", "PKG-INFO", ""):
        head = _read(os.path.join(place, file) if file else place).decode(errors="replace")
        for line in head.split("\n"):
            key, colon, value = line.partition(":")
            if colon and key.lower() == name.lower():
                return value.strip()
            if not line.strip():
                break  # the description follows
    return ""


def _read(path: str, limit: int | None = _HEAD) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(-1 if limit is None else limit)
    except OSError:
        return b""


PATIENCE = 5.0
"""How long git may take, seconds."""

PACKAGES = ("lllaunch", "hydra-core", "omegaconf", "torch")
"""Packages whose versions matter to every run, where they are installed."""

_SHORTEST_HASH = 40  # characters; that of SHA-1
_SHORT_PATIENCE = 1.0  # for a question that reads two small files
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=normal")
_COMMIT = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")


# What git says of a tree; null is what is not known.
_OF_TREE = ("commit", "dirty", "branch", "changed", "untracked", "git_problem")


def build_facts(
    cwd: str, environ: Mapping[str, str] | None = None, *, own: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns what is built from a directory, as `BuildQuery` does; waits `PATIENCE` at most."""
    return BuildQuery(cwd, environ).result(own=own)


class BuildQuery:
    """A question that git works on; takes about a millisecond to ask, and raises nothing.

    The thread that asks it must live until `result` or `close`: git ends with it.

    Args:
        environ: what git is found and run with; that of this process if None.
    """

    def __init__(self, cwd: str, environ: Mapping[str, str] | None = None) -> None:
        self._cwd = cwd
        self._environ = dict(os.environ) if environ is None else environ
        self._tree: dict[str, Any] | None = None
        self._git: Git | None = None
        try:
            self._git = Git(cwd, _STATUS, self._environ)
        except OSError as error:
            self._tree = _unknown(refusal(error))

    def result(
        self,
        timeout: float = PATIENCE,
        *,
        modules: Sequence[str] = (),
        own: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Returns what a run is built from, as plain data for JSON; idempotent.

        Args:
            timeout: how long to wait for git from now on, seconds.
            modules: dotted names of modules; versions of the distributions that hold them are told.
            own: directories that runs write to. An untracked directory that holds one of them, and
                not ``cwd``, is taken for output: it does not make the tree dirty.

        Returns:
            ``commit`` (full hash), ``dirty``, ``branch`` (null if none is checked out), ``changed``
            (tracked files that differ from the commit), ``untracked`` (files and whole directories
            that are neither tracked nor ignored), ``git_problem`` (why some of these are null, else
            null), ``versions`` (by package), ``python`` and ``implementation``.
        """
        if self._tree is None:
            self._tree = self._answer(timeout, own)
        return {
            **self._tree,
            "versions": versions_of(PACKAGES, modules),
            "python": sys.version.split()[0],
            "implementation": sys.implementation.name,
        }

    def close(self) -> None:
        """Ends git if it still runs; idempotent, and not needed after `result`."""
        if self._git is not None:
            self._git.end(0.0)
            self._git = None

    def _answer(self, timeout: float, own: Sequence[str]) -> dict[str, Any]:
        git, self._git = self._git, None
        if git is None:
            return _unknown("nobody waited for git")
        answer = git.end(timeout)
        if answer is not None:
            return parse_status(*answer, cwd=self._cwd, own=own)
        problem = "git status took too long"
        with contextlib.suppress(OSError):
            short = Git(self._cwd, _COMMIT, self._environ).end(_SHORT_PATIENCE)
            lines = short[0].split("\n") if short else []
            if len(lines) >= 2 and len(lines[0]) >= _SHORTEST_HASH:
                branch = None if lines[1] == "HEAD" else lines[1]
                return _unknown(problem, commit=lines[0], branch=branch)
        return _unknown(problem)


def _unknown(problem: str, **known: str | None) -> dict[str, Any]:
    return {**dict.fromkeys(_OF_TREE), "git_problem": problem, **known}


def refusal(error: OSError) -> str:
    """Returns why git could not be started."""
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    return f"git cannot be started: {error.strerror or error}"


def parse_status(told: str, errors: str, *, cwd: str, own: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what ``git status --porcelain=v2 --branch -z`` says; reads no file but .git."""
    entries = told.split("\0")
    heads = dict(
        entry[2:].partition(" ")[::2] for entry in entries if entry.startswith("# branch.")
    )
    if "branch.oid" not in heads:
        return _unknown(complaint(errors))
    commit, branch = heads["branch.oid"], heads.get("branch.head")
    unborn = commit == "(initial)"
    changed = sum(entry.startswith(("1 ", "2 ", "u ")) for entry in entries)
    strange = [entry[2:] for entry in entries if entry.startswith("? ")]
    if strange and own:
        strange = _not_output(strange, cwd, own)
    return {
        "commit": None if unborn else commit,
        "dirty": bool(changed or strange),
        "branch": None if branch == "(detached)" else branch,
        "changed": changed,
        "untracked": len(strange),
        "git_problem": "there is no commit yet" if unborn else None,
    }


def _not_output(untracked: Sequence[str], cwd: str, own: Sequence[str]) -> list[str]:
    """Returns what is not a directory for output."""
    here = os.path.realpath(cwd)
    top = here
    while not os.path.lexists(os.path.join(top, ".git")) and top != "/":
        top = os.path.dirname(top)
    outputs = [f"{os.path.realpath(path)}/" for path in own]

    def is_output(name: str) -> bool:
        path = os.path.join(top, name)
        return (
            name.endswith("/")
            and any(output.startswith(path) for output in outputs)
            and not f"{here}/".startswith(path)
        )

    return [name for name in untracked if not is_output(name)]


NO_REPOSITORY = "not in a git repository"


def complaint(errors: str) -> str:
    """Returns what git said against it, in one line; hints and progress are left out."""
    lines = [line.strip() for line in errors.splitlines()]
    said = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    text = "; ".join(line.partition(": ")[2] or line for line in said if line)
    if text.startswith("not a git repository"):
        return NO_REPOSITORY
    return text[:500] or "it said nothing"
