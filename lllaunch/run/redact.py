"""Keeps secrets out of what is written: their values are replaced by where they come from."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from lllaunch.files import read_text
from lllaunch.run.directory import PLAN
from lllaunch.secret_names import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lllaunch.spec import LaunchSpec

# What a plan says instead of a value.
_SOURCE = re.compile(r"\$\{oc\.env:(\w+)")
_SHORTEST = 4  # characters
_LONG = 16


class Redactor:
    """Replaces the values of secrets in text.

    Values that are no secrets are left alone (`lllaunch.secret_names.is_secret`): those of most
    variables are the names of users, hosts and directories, which stand in half of all lines.
    ``certain`` says that all of them are secrets, whatever they are called and look like.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None, *, certain: bool = False) -> None:
        self._names = {
            value: source
            for value, source in (secrets or {}).items()
            if len(value) >= _SHORTEST and (certain or is_secret(value, source))
        }
        # the longest first: a secret may hold another one
        longest = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_whole_words, longest))) if longest else None

    @classmethod
    def of(cls, spec: LaunchSpec) -> Redactor:
        """Return the redactor for the secrets that a run gives to its workers."""
        secrets = {
            value: source
            for path, value, source in spec.withheld()
            if is_secret(value, *map(str, path), source)
        }
        return cls(secrets, certain=True)

    def __call__(self, text: str) -> str:
        """Return ``text`` without the values of secrets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)


def redactor_of(directory: str, environ: Mapping[str, str]) -> Redactor:
    """Return what takes the values of variables that a run's plan names out of what it has left.

    Plans of its nodes are in directories in its own; the values may be in ``environ``.
    """
    plans = [os.path.join(directory, PLAN)]
    with contextlib.suppress(OSError):
        plans += [os.path.join(directory, name, PLAN) for name in os.listdir(directory)]
    names = {name for plan in plans for name in _SOURCE.findall(read_text(plan) or "")}
    return Redactor({environ[name]: f"${{oc.env:{name}}}" for name in names & environ.keys()})


def _whole_words(value: str) -> str:
    """Return a pattern for a value; a short one may be a part of an ordinary word."""
    pattern = re.escape(value)
    if len(value) >= _LONG:
        return pattern
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    return f"{before}{pattern}" + (r"(?!\w)" if re.search(r"\w\Z", value) else "")
