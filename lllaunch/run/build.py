"""What a run was built from: the commit, whether the tree was changed, versions of packages.

It becomes the ``build`` of result.json. Git is asked by its program, which may take its time on a
large tree or a slow disk; so a run starts the question when it begins and takes the answer when it
ends. Nothing here makes a run fail: what cannot be found out is null, and ``git_problem`` says why.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from lllaunch.run.git import Git

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

PATIENCE = 5.0
"""How long git may take, seconds."""

PACKAGES = ("lllaunch", "hydra-core", "omegaconf", "torch")
"""Packages whose versions matter to every run, where they are installed."""

_SHORTEST_HASH = 40  # characters; that of SHA-1
_SHORT_PATIENCE = 1.0  # for a question that reads two small files
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=normal")
_COMMIT = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")


# What git says of a tree; null is what is not known.
_UNKNOWN: dict[str, Any] = {
    "commit": None,
    "dirty": None,
    "branch": None,
    "changed": None,
    "untracked": None,
    "git_problem": None,
}


def build_facts(
    cwd: str,
    modules: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    own: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns what a run is built from, as plain data for JSON; waits for git, `PATIENCE` at most.

    Args:
        cwd: the directory that the command was given in.
        modules: dotted names of modules; versions of the distributions that hold them are told.
        environ: what git is found and run with; that of this process if None.
        own: as in `BuildQuery.result`.

    Returns:
        ``commit`` (full hash), ``dirty``, ``branch`` (null if none is checked out), ``changed``
        (tracked files that differ from the commit), ``untracked`` (files and whole directories that
        are neither tracked nor ignored), ``git_problem`` (why some of these are null, else null),
        ``versions`` (by package), ``python`` and ``implementation``.
    """
    return BuildQuery.start(cwd, environ).result(PATIENCE, modules=modules, own=own)


class BuildQuery:
    """A question that git works on; made by `start`.

    The thread that starts it must live until `result` or `close`: git ends with it.
    """

    def __init__(self, cwd: str, environ: Mapping[str, str]) -> None:
        self._cwd = cwd
        self._environ = environ
        self._tree: dict[str, Any] | None = None
        self._git: Git | None = None

    @classmethod
    def start(cls, cwd: str, environ: Mapping[str, str] | None = None) -> Self:
        """Asks git, without waiting for it; takes about a millisecond and raises nothing.

        Args:
            cwd: the directory that the command was given in.
            environ: what git is found and run with; that of this process if None.
        """
        query = cls(cwd, dict(os.environ) if environ is None else environ)
        try:
            query._git = Git(cwd, _STATUS, query._environ)
        except OSError as error:
            query._tree = _unknown(_refusal(error))
        return query

    def result(
        self,
        timeout: float = PATIENCE,
        *,
        modules: Sequence[str] = (),
        own: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Returns the answer as `build_facts` does; idempotent.

        Args:
            timeout: how long to wait for git from now on, seconds.
            modules: as for `build_facts`.
            own: directories that runs write to. An untracked directory that holds one of them, and
                not ``cwd``, is taken for output: it does not make the tree dirty.
        """
        if self._tree is None:
            self._tree = self._answer(timeout, own)
        from lllaunch.run.versions import versions_of  # noqa: PLC0415 - a run starts without it

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
    return {**_UNKNOWN, "git_problem": problem, **known}


def _refusal(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    return f"git cannot be started: {error.strerror or error}"


def parse_status(told: str, errors: str, *, cwd: str, own: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what ``git status --porcelain=v2 --branch -z`` says; pure but for looking for .git.

    Args:
        told: what it wrote.
        errors: what it wrote to standard error.
        cwd: where it was asked.
        own: as in `BuildQuery.result`.
    """
    entries = told.split("\0")
    heads = dict(
        entry[2:].partition(" ")[::2] for entry in entries if entry.startswith("# branch.")
    )
    if "branch.oid" not in heads:
        return _unknown(_complaint(errors))
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


def _complaint(errors: str) -> str:
    """Returns the first line of what git said against it, without its ``fatal:``."""
    line = errors.strip().partition("\n")[0].removeprefix("fatal: ")
    if line.startswith("not a git repository"):
        return "not in a git repository"
    return line[:300] or "git status said nothing"
