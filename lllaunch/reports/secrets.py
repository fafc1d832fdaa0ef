"""Secrets that workers may have written to their logs, and that the environment still has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from lllaunch.run.execute import PLAN
from lllaunch.run.redact import Redactor

# What a plan says instead of a value.
_SOURCE = re.compile(r"\$\{oc\.env:(\w+)")


def redactor_of(path: str, environ: Mapping[str, str]) -> Redactor:
    """Returns what takes out the values of variables that the plans of a run or sweep name.

    Args:
        path: the directory of the run or sweep, or a file in it.
        environ: where the values may be.
    """
    directory = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    names = {name for text in _plans(directory) for name in names_in(text)}
    return redactor(names, environ)


def redactor(names: set[str], environ: Mapping[str, str]) -> Redactor:
    """Returns what takes out the values of variables."""
    return Redactor({environ[name]: f"${{oc.env:{name}}}" for name in names & environ.keys()})


def names_in(plan: str) -> set[str]:
    """Names of the variables that a plan's text says its values come from."""
    return set(_SOURCE.findall(plan))


def _plans(directory: str) -> Iterator[str]:
    yield from _text(os.path.join(directory, PLAN))
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        yield from _text(os.path.join(directory, name, PLAN))


def _text(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield file.read()
    except OSError:
        return
