"""What a run was built from: the commit, whether the tree was changed, versions of packages.

It becomes the ``build`` of result.json. Git is asked by its program, which may take its time on a
large tree or a slow disk; so a run starts the question when it begins and takes the answer when it
ends. Nothing here makes a run fail: what cannot be found out is null, and ``git_problem`` says why.

Versions are read where `importlib.metadata` reads them: importing that takes 20 ms, and asking it
which package a module belongs to half a second. No package is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

from lllaunch.files import read_bytes
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

    Of the user's ``environ`` what would lead it elsewhere is left out; ``variables`` come on top.
    ``status`` is its exit status; None before `end`, or if it is not known.

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

        command = [program, "-C", cwd, *_QUIET, *arguments]
        # a launcher that is killed takes it along
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        kept = {
            name: value
            for name, value in environ.items()
            if name not in _DROPPED and not name.startswith("GIT_TRACE")
        }
        self.status: int | None = None
        with contextlib.ExitStack() as opened:
            # files rather than pipes: it need not wait for anybody who reads
            self._written = [os.memfd_create("git", os.MFD_CLOEXEC) for _ in range(2)]
            for fd in self._written:
                opened.callback(os.close, fd)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._written[0],
                stderr=self._written[1],
                env={**kept, **_SET, **(variables or {})},
                start_new_session=True,
            )
            # a process that was forked from this one may wait for it, too
            self._pidfd = open_pidfd(self._process.pid)
            if self._pidfd is not None:
                opened.callback(os.close, self._pidfd)
            self._opened = opened.pop_all()

    def end(self, timeout: float, most: int = _MOST) -> tuple[str, str] | None:
        """Waits for it, then kills it and what it started; to be called once.

        Returns its standard output and standard error, at most so many bytes of each; None if it
        did not end within ``timeout`` seconds.
        """
        ended = False
        with self._opened:
            try:
                ended = self._wait(timeout)
            finally:
                if not ended:  # also where a signal interrupts who waits
                    with contextlib.suppress(OSError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                    self._wait(_KILLED_WITHIN)  # if it hangs in the kernel, it is left to that
                self.status = self._process.poll()
            out, err = (
                os.pread(fd, min(os.fstat(fd).st_size, most), 0).decode(errors="surrogateescape")
                for fd in self._written
            )
        return (out, err) if ended else None

    def _wait(self, seconds: float) -> bool:
        return self._pidfd is not None and wait_readable(self._pidfd, seconds)


def versions_of(
    packages: Iterable[str], modules: Iterable[str] = (), path: Sequence[str] | None = None
) -> dict[str, str]:
    """Returns the versions of packages by name, those that are not installed left out.

    The distributions that hold ``modules`` (dotted names) come too. Modules of Python itself, and
    those that no installer has put there, belong to none. ``path`` is ``sys.path`` if None.
    """
    entries: dict[str, list[str]] = {}
    places: dict[str, str] = {}  # of the first distribution of each name
    for entry in dict.fromkeys(
        each or os.getcwd() for each in (sys.path if path is None else path)
    ):
        with contextlib.suppress(OSError):  # not there, or an archive
            entries[entry] = sorted(os.listdir(entry))
            for name in entries[entry]:
                if name.endswith((".dist-info", ".egg-info")):
                    places.setdefault(_normalized(_parts(name)[0]), os.path.join(entry, name))
    wanted = {_normalized(name): name for name in packages}
    for top in sorted({module.partition(".")[0] for module in modules} - {""}):
        place = None if top in sys.stdlib_module_names else _owner(top, entries, places)
        if place is not None:
            name, _ = _parts(os.path.basename(place))
            wanted.setdefault(_normalized(name), name)
    known = {name: _parts(os.path.basename(places.get(key, "")))[1] for key, name in wanted.items()}
    return {name: version for name, version in known.items() if version}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _parts(info: str) -> tuple[str, str]:
    """Return name and version of a distribution, from what the directory of its metadata is called.

    The version is empty where an old installer has left it out.
    """
    name, _, version = info.rpartition(".")[0].partition("-")
    return name, version.partition("-py")[0]


def _owner(top: str, entries: Mapping[str, Sequence[str]], places: Mapping[str, str]) -> str | None:
    """Return the metadata of the distribution that a top-level module belongs to, None if none."""
    likely = places.get(_normalized(top))
    for entry, names in entries.items():
        if any(name == top or name.startswith(f"{top}.") for name in names):
            beside = [each for each in places.values() if os.path.dirname(each) == entry]
            for place in sorted(beside, key=lambda place: place != likely):
                listed = _read(os.path.join(place, "top_level.txt")).decode(errors="replace")
                record = b"\n" + _read(os.path.join(place, "RECORD"))
                marks = (f"\n{top}{mark}".encode() for mark in ("/__init__.", "/", ".py,", "."))
                if top in listed.split() if listed else any(mark in record for mark in marks):
                    return place
            break
    # one that is installed as editable lies elsewhere, as in a user's checkout
    editable = likely and b'"editable"' in _read(os.path.join(likely, "direct_url.json"))
    return likely if editable else None


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except OSError:
        return b""


PATIENCE = 5.0
"""How long git may take, seconds."""

PACKAGES = ("lllaunch", "hydra-core", "omegaconf", "torch")
"""Packages whose versions matter to every run, where they are installed."""

_SHORT_PATIENCE = 1.0  # for a question that reads two small files
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=normal")
_COMMIT = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")


def build_facts(
    cwd: str, environ: Mapping[str, str] | None = None, *, own: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns what is built from a directory, as `BuildQuery` does; waits `PATIENCE` at most."""
    return BuildQuery(cwd, environ).result(own=own)


class BuildQuery:
    """A question that git works on; takes about a millisecond to ask, and raises nothing.

    The thread that asks it must live until `result` or `close`: git ends with it.
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

        ``timeout``: how long to wait for git from now on, seconds. ``modules``: dotted names; the
        versions of their distributions are reported. ``own``: directories that runs write to. An
        untracked directory that holds one of them, and not ``cwd``, is taken for output: it does
        not make the tree dirty. Returns ``commit`` (full hash), ``dirty``, ``branch`` (null if none
        is checked out), ``changed`` (tracked files that differ from the commit), ``untracked``
        (files and whole directories that are neither tracked nor ignored), ``git_problem`` (why
        some of these are null, else null), ``versions`` (by package), ``python`` and
        ``implementation``.
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
            # a hash of SHA-1, or a longer one
            if len(lines) >= 2 and len(lines[0]) >= 40:
                branch = None if lines[1] == "HEAD" else lines[1]
                return _unknown(problem, commit=lines[0], branch=branch)
        return _unknown(problem)


def _unknown(problem: str, **known: str | None) -> dict[str, Any]:
    names = ("commit", "dirty", "branch", "changed", "untracked")
    return {**dict.fromkeys(names), "git_problem": problem, **known}


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
    outputs = tuple(f"{os.path.realpath(path)}/" for path in own)
    return [
        name
        for name in untracked
        if not name.endswith("/")
        or f"{here}/".startswith(path := os.path.join(top, name))
        or not any(output.startswith(path) for output in outputs)
    ]


NO_REPOSITORY = "not in a git repository"


def complaint(errors: str) -> str:
    """Returns what git said against it, in one line; hints and progress are left out."""
    lines = [line.strip() for line in errors.splitlines()]
    said = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    text = "; ".join(line.partition(": ")[2] or line for line in said if line)
    if text.startswith("not a git repository"):
        return NO_REPOSITORY
    return text[:500] or "it said nothing"
