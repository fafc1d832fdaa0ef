"""Where one user's runs and sweeps are that are not below Hydra's default directories.

Of each of them a symbolic link is kept in the user's state directory, named by where the command
was given: one system call makes it, whoever else does, and there is nothing in it that could be
half written. It is a convenience: no run fails for it, and of many links the oldest go.

Every run imports this module at its start; `lllaunch.results.locate` finds what the links lead to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


DEFAULT_ROOTS = ("outputs", "multirun")
"""Where Hydra puts runs and sweeps, below the working directory."""

DEPTH = 6
"""How many levels below a directory are looked at; Hydra's defaults need three."""

MOST = 1000
"""Links that are kept; when there are more, the oldest half goes."""


def index_directory(environ: Mapping[str, str]) -> str:
    """Return where the links are: below ``$XDG_STATE_HOME``, by default ``~/.local/state``.

    Returns an absolute path; an empty string if the user has no home.
    """
    state = environ.get("XDG_STATE_HOME", "")
    # the specification has relative ones ignored
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "lllaunch", "runs") if os.path.isabs(state) else ""


def remember(path: str, cwd: str, environ: Mapping[str, str]) -> None:
    """Note that a run or a sweep has begun; what is in the way of that is passed over."""
    parts = os.path.relpath(path, cwd).split(os.sep)
    directory = index_directory(environ)
    if (parts[0] in DEFAULT_ROOTS and len(parts) <= DEPTH) or not directory:
        return
    link = os.path.join(directory, f"{_digest(cwd)}-{_digest(path)}")
    with contextlib.suppress(OSError):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        try:
            os.symlink(os.path.realpath(path), link)
        except FileExistsError:
            os.utime(link, follow_symlinks=False)
        _prune(directory)


def used_from(cwd: str, environ: Mapping[str, str]) -> list[str]:
    """Return directories of runs and sweeps that were started in a directory and are there."""
    directory = index_directory(environ)
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    ours = sorted(name for name in names if name.startswith(f"{_digest(cwd)}-"))
    found = []
    for name in ours:
        with contextlib.suppress(OSError):
            found.append(os.readlink(os.path.join(directory, name)))
    return [path for path in found if os.path.isdir(path)]


def _digest(path: str) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]


def _prune(directory: str) -> None:
    links = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another launcher was faster
                links.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    for _, path in sorted(links)[: -MOST // 2] if len(links) > MOST else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
