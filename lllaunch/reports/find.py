"""Finds out what a path is: a run's or a sweep's directory, or the document of one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from lllaunch.errors import ConfigError, OutputError, Problem

_VERSION = 1
_LONGEST = 256 * 1024 * 1024  # bytes of a document
_OF_RUN = ("result.json", "plan.yaml", "events.jsonl")
_OF_SWEEP = ("sweep.json", "sweep.jsonl")
_EXPECTED = (
    "expected the directory of a run (with plan.yaml or result.json) or of a sweep (with "
    "sweep.jsonl or sweep.json), or its result.json or sweep.json"
)

Fields = Mapping[str, Any]


class Found(NamedTuple):
    """What a path is.

    Attributes:
        kind: ``run`` or ``sweep``.
        directory: its directory, as it was given.
        document: path of its result.json or sweep.json; it may not be there.
    """

    kind: Literal["run", "sweep"]
    directory: str
    document: str


def find(path: str) -> Found:
    """Finds out what a path is.

    Args:
        path: a directory of a run or a sweep, or its result.json or sweep.json.

    Raises:
        ConfigError: it is none of these; says what was expected.
    """
    if os.path.isdir(path):
        return _find_directory(path)
    if not os.path.lexists(path):
        raise _wrong(path, "does not exist", _EXPECTED)
    directory, name = os.path.split(path)
    directory = directory or os.curdir
    if name in _OF_SWEEP:
        return Found("sweep", directory, os.path.join(directory, "sweep.json"))
    if name in _OF_RUN[1:]:
        return Found("run", directory, os.path.join(directory, "result.json"))
    document = read_document(path)
    if document is not None and isinstance(document.get("jobs"), list):
        return Found("sweep", directory, path)
    if document is not None and "exit_code" in document:
        return Found("run", directory, path)
    raise _wrong(path, "is neither a result.json nor a sweep.json", _EXPECTED)


def _find_directory(path: str) -> Found:
    names = set(_listed(path))
    if not names.isdisjoint(_OF_SWEEP):
        return Found("sweep", path, os.path.join(path, "sweep.json"))
    if not names.isdisjoint(_OF_RUN) or any(name.startswith("attempt_") for name in names):
        return Found("run", path, os.path.join(path, "result.json"))
    if "multirun.yaml" in names:
        raise _wrong(
            path, "holds no sweep.jsonl", "the sweep was refused, or lllaunch did not run it"
        )
    if ".hydra" in names:
        raise _wrong(path, "holds no plan.yaml", "the run was refused before it began")
    raise _wrong(path, "is not the directory of a run or a sweep", _EXPECTED)


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def checked(path: str, document: Fields | None) -> Fields | None:
    """Returns a document, if it is of the version that is understood here.

    Args:
        path: of its file.
        document: what that holds, or None.

    Raises:
        ConfigError: it is of another version.
    """
    if document is None:
        return None
    version = document.get("version")
    if version != _VERSION:
        told = f"is of version {version!r}" if version is not None else "has no version"
        raise _wrong(path, f"{told}; this lllaunch reads version {_VERSION}")
    return document


def read_document(path: str) -> Fields | None:
    """Returns what a JSON file holds, None if it is not there.

    Args:
        path: the file.

    Raises:
        ConfigError: it is not a JSON object.
        OutputError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _wrong(path, "is not a regular file")
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    if len(data) > _LONGEST:
        raise _wrong(path, f"is longer than {_LONGEST} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _wrong(path, "is not a JSON object")
    return document


def _wrong(path: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError((Problem("report", repr(path), message, hint),))
