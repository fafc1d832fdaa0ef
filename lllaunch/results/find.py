"""Where runs and sweeps are: below some directories, and in an index of one user's.

Runs below Hydra's default directories are found without the index. Of any other one a symbolic link
is kept in the user's state directory, named by where the command was given: one system call makes
it, whoever else does, and there is nothing in it that could be half written. It is a convenience:
no run fails for it, and of many links the oldest go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lllaunch.config.secrets import redacted_overrides
from lllaunch.run.directory import LOCK_NAME
from lllaunch.sweep.directory import JOURNAL, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST = 64 * 1024 * 1024  # bytes
_LONGEST = 1e10  # seconds; three centuries
_TAIL = 16 * 1024  # bytes
# What Hydra writes, where YAML cannot mean anything but the text itself.
_PLAIN = re.compile(r"- ([A-Za-z0-9_+~][\w+~./@,-]*=[\w+~./@,=-]*)")


def _read(path: str, tail: int = 0) -> bytes | None:
    """Returns what a regular file holds, of a long one the end; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with open(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return None
            if tail:
                file.seek(max(0, found.st_size - tail))
            data = file.read(_MOST + 1)
    except OSError:
        return None
    return data if len(data) <= _MOST else None


def read_json(path: str) -> dict[str, Any] | None:
    """Returns the object that a file holds; None if it holds none, or cannot be read."""
    data = _read(path)
    return None if data is None else _object(data)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        # NaN and Infinity are not JSON
        found = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_text(path: str) -> str | None:
    """Returns the text of a file, None if it cannot be read."""
    data = _read(path)
    return None if data is None else data.decode(errors="backslashreplace")


def read_overrides(directory: str) -> tuple[str, ...]:
    """Return the overrides of a run without secrets; none if they cannot be read.

    Args:
        directory: of the run.
    """
    text = read_text(os.path.join(directory, ".hydra", "overrides.yaml"))
    if not text:
        return ()
    lines = text.splitlines()
    plain = [_PLAIN.fullmatch(line) for line in lines]
    found = [match[1] for match in plain if match]
    return redacted_overrides(found if len(found) == len(lines) else _from_yaml(text))


def _from_yaml(text: str) -> tuple[str, ...]:
    # 15 ms to import, and most overrides are plain
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - PyYAML ships no types

    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    except (yaml.YAMLError, ValueError, RecursionError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def last_event(directory: str) -> dict[str, Any] | None:
    """Returns the last whole line of a run's events.jsonl, None if there is none.

    Args:
        directory: of the run.
    """
    return last_record(os.path.join(directory, "events.jsonl"), _TAIL)


def last_record(path: str, window: int) -> dict[str, Any] | None:
    """Returns the last whole line that says anything of a file of JSON lines, None without one.

    Args:
        path: of the file.
        window: how many bytes at its end are looked at.
    """
    lines = (_read(path, window) or b"").split(b"\n")
    return next((found for line in reversed(lines[:-1]) if (found := _object(line))), None)


def nanoseconds(moment: object) -> int | None:
    """Returns an ISO 8601 time in UTC as nanoseconds since the epoch, None if it is none."""
    if not isinstance(moment, str) or not moment.endswith("Z"):
        return None
    try:
        found = datetime.fromisoformat(f"{moment[:-1]}+00:00")
    except ValueError:
        return None
    return int(found.timestamp()) * 1_000_000_000 + found.microsecond * 1000


def finite(number: object) -> float | None:
    """Returns a number that a time span can be, None for anything else."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if 0 <= number < _LONGEST else None


DEFAULT_ROOTS = ("outputs", "multirun")
"""Where Hydra puts runs and sweeps, below the working directory."""

DEPTH = 6
"""How many levels below a directory are looked at; Hydra's defaults need three."""

# As `lllaunch.run.execute` calls them, which is long to import.
PLAN = "plan.yaml"
EVENTS = "events.jsonl"
RESULT = "result.json"

_OF_A_RUN = frozenset({LOCK_NAME, EVENTS, PLAN, RESULT})
_OF_A_SWEEP = frozenset({JOURNAL, SUMMARY})


class FoundDirectory(NamedTuple):
    """The directory of a run or a sweep.

    Attributes:
        path: as it was come by.
        kind: which of the two.
        names: of all that is in it.
    """

    path: str
    kind: Literal["run", "sweep"]
    names: frozenset[str]


def find(root: str, depth: int = DEPTH) -> Iterator[FoundDirectory]:
    """Finds runs and sweeps in a directory and below it, in no order.

    Links are not followed, and what cannot be read is passed over. Nothing is looked for in a run
    or a sweep, unless that is the root itself; a sweep's journal tells of its jobs.

    Args:
        root: where to begin.
        depth: how many levels below it are looked at.
    """
    left = [(root, depth)]
    while left:
        path, levels = left.pop()
        names, directories = _contents(path)
        kind = _kind(path, names)
        if kind is not None:
            yield FoundDirectory(path, kind, names)
        if levels > 0 and (kind is None or (kind == "run" and path == root)):
            left += [
                (os.path.join(path, name), levels - 1)
                for name in directories
                if not (name.startswith(".") or (kind and name.startswith("attempt_")))
            ]


def look(path: str) -> FoundDirectory | None:
    """Returns what a directory is, None if it is neither a run nor a sweep."""
    names, _ = _contents(path)
    kind = _kind(path, names)
    return None if kind is None else FoundDirectory(path, kind, names)


def _kind(path: str, names: frozenset[str]) -> Literal["run", "sweep"] | None:
    if names & _OF_A_SWEEP:
        return "sweep"
    known = len(names & _OF_A_RUN)
    # other programs write a result.json or a plan.yaml, too: one name alone says little
    if known >= 2 or (RESULT in names and is_result(read_json(os.path.join(path, RESULT)))):
        return "run"
    return None


def is_result(document: Mapping[str, Any] | None) -> bool:
    """Whether a JSON object is a result.json of lllaunch's; pure."""
    return document is not None and {"state", "exit_code", "attempts"} <= document.keys()


def _contents(path: str) -> tuple[frozenset[str], list[str]]:
    """Returns all names in a directory, and those of directories."""
    names, directories = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names.append(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
    except OSError:
        return frozenset(), []
    return frozenset(names), directories


MOST = 1000
"""Links that are kept; when there are more, the oldest half goes."""


def index_directory(environ: Mapping[str, str]) -> str:
    """Return where the links are: below ``$XDG_STATE_HOME``, by default ``~/.local/state``.

    Args:
        environ: of this process.

    Returns:
        An absolute path; an empty string if the user has no home.
    """
    state = environ.get("XDG_STATE_HOME", "")
    # the specification has relative ones ignored
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "lllaunch", "runs") if os.path.isabs(state) else ""


def remember(path: str, cwd: str, environ: Mapping[str, str]) -> None:
    """Note that a run or a sweep has begun; what is in the way of that is passed over.

    Args:
        path: its directory, absolute.
        cwd: where the command was given.
        environ: of this process.
    """
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
    """Return directories of runs and sweeps that were started in a directory and are there.

    Args:
        cwd: the directory.
        environ: of this process.
    """
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
