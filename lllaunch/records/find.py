"""Where runs and sweeps are: a bounded walk below some directories."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lllaunch.records.files import read_json
from lllaunch.run.directory import LOCK_NAME
from lllaunch.sweep.directory import JOURNAL, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


class Found(NamedTuple):
    """The directory of a run or a sweep.

    Attributes:
        path: as it was come by.
        kind: which of the two.
        names: of all that is in it.
    """

    path: str
    kind: Literal["run", "sweep"]
    names: frozenset[str]


def find(root: str, depth: int = DEPTH) -> Iterator[Found]:
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
            yield Found(path, kind, names)
        if levels > 0 and (kind is None or (kind == "run" and path == root)):
            left += [
                (os.path.join(path, name), levels - 1)
                for name in directories
                if not (name.startswith(".") or (kind and name.startswith("attempt_")))
            ]


def look(path: str) -> Found | None:
    """Returns what a directory is, None if it is neither a run nor a sweep."""
    names, _ = _contents(path)
    kind = _kind(path, names)
    return None if kind is None else Found(path, kind, names)


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
