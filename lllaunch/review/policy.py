"""What a project allows to be run: ``conf/lllaunch.yaml``, read and never composed.

No override, no group and no defaults list can change it: it comes from the top of the working tree,
or from the file that LLLAUNCH_POLICY names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from lllaunch.config.document import Document, parse, read_text, wrong
from lllaunch.documents import Record, as_record
from lllaunch.errors import Code
from lllaunch.review.paths import POLICY_FILE

T = TypeVar("T")


class Forms(NamedTuple):
    """What a pattern may fit."""

    names: tuple[str, ...] = ()
    file: str = ""  # path, relative to the tree if in it, else absolute; empty if there is none
    exact: str = ""  # a name that only the same text allows: what is there may be something else


def is_within(path: str, patterns: Iterable[str]) -> bool:
    """Whether a directory, or what is in it, fits one of some patterns."""
    return any(fits(each, path) or fits(each, f"{path}/") for each in patterns)


def fits(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern; it always fits itself."""
    return pattern == text or fnmatchcase(text, pattern)


def fits_any(patterns: Iterable[str], forms: Forms) -> bool:
    """Whether one of the forms of something fits one of some patterns."""
    for each in patterns:
        of_files = not each.startswith("-m ") and ("/" in each or each.endswith(".py"))
        named = not of_files and any(fits(each, name) for name in forms.names)
        if named or (forms.exact and each == forms.exact):
            return True
        # a star that begins a pattern does not lead out of the tree
        here = forms.file and each.startswith("/") == forms.file.startswith("/")
        if (of_files or each == "*") and here and fits(each, forms.file):
            return True
    return False


class Policy(Record, frozen=True, forbid_unknown_fields=True):
    """What may be run: lists of patterns. What no pattern fits may not."""

    # functions (``package.module:name``), modules (``-m package.module``) and scripts (paths)
    entrypoints: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # names on PATH, or paths
    preload: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # other targets
    searchpath: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # variables that are refused otherwise, such as ``PYTHONHASHSEED``
    # absolute paths outside of the tree where workers may work and write, and of log files outside
    # of the run's directory
    paths: tuple[str, ...] = ()
    # where nodes may meet (``launch.rdzv.endpoint``): names or addresses
    hosts: tuple[str, ...] = ()
    # lines that run in batch jobs (``cluster.setup``, ``cluster.teardown``), and words for srun and
    # sbatch (``cluster.srun_args``, ``cluster.additional_parameters``)
    cluster: tuple[str, ...] = ()
    file: str = POLICY_FILE


class _PolicyFile(Record, frozen=True, forbid_unknown_fields=True):
    allow: Policy


def read_policy(path: str) -> Policy:
    """Read a policy; raises a `ConfigError` if something is wrong with it."""
    return parse_policy(read_text(path), path)


def parse_policy(text: str, path: str) -> Policy:
    """Reads the text of a policy; `read_policy` tells what is raised."""
    document = parse(text, path)
    hint = "an allowlist is 'allow: {...}', a mapping of lists of patterns"
    policy = expect_record(document, _PolicyFile, path, "policy", hint).allow
    for place, each in enumerate(policy.paths):
        if not each.startswith("/"):
            line = document.lines.nearest(["allow", "paths", place])
            message = f"allow.paths: expected an absolute path, got {each!r}"
            hint = "those in the tree are allowed anyway"
            raise wrong(path, line, message, hint, code="policy")
    return replace(policy, file=path)


def expect_record(document: Document, kind: type[T], path: str, code: Code, hint: str) -> T:
    """Return the record that a file is, or raise a `ConfigError` with the line that is wrong."""
    try:
        return as_record(document.data, kind)
    except ValueError as error:
        found = re.search(r"\$([\w.\[\]]*)", str(error))
        parts = re.findall(r"\w+", found[1]) if found else []
        line = document.lines.nearest([int(part) if part.isdecimal() else part for part in parts])
        raise wrong(path, line, f"is no {code}: {error}", hint, code=code) from None
