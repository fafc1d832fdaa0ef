"""What a project allows to be run: ``conf/lllaunch.yaml``, read and never composed.

No override, no group and no defaults list can change it: it comes from the top of the working tree,
or from the file that LLLAUNCH_POLICY names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from lllaunch.config.document import parse, read_text
from lllaunch.config.fields import Findings, known_items, one_of
from lllaunch.config.tree import parts_of
from lllaunch.errors import ConfigError, Unfit


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
    return any(
        (forms.exact and each == forms.exact) or _fits_forms(each, forms) for each in patterns
    )


def _fits_forms(pattern: str, forms: Forms) -> bool:
    of_files = not pattern.startswith("-m ") and ("/" in pattern or pattern.endswith(".py"))
    if not of_files and any(fits(pattern, name) for name in forms.names):
        return True
    if not of_files and pattern != "*":
        return False
    # a star that begins a pattern does not lead out of the tree
    if not forms.file or pattern.startswith("/") != forms.file.startswith("/"):
        return False
    return fits(pattern, forms.file)


LISTS: tuple[str, ...] = (
    *("entrypoints", "programs", "preload", "callbacks", "targets"),
    *("searchpath", "env", "paths", "hosts", "cluster"),
)
"""Lists of patterns under ``allow``."""


@dataclass(frozen=True)
class Policy:
    """What may be run; what no pattern fits may not."""

    path: str
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


def read_policy(path: str) -> Policy:
    """Read a policy; raises a `ConfigError` with everything that is wrong."""
    return parse_policy(read_text(path), path)


def parse_policy(text: str, path: str) -> Policy:
    """Reads the text of a policy; `read_policy` tells what is raised."""
    document, findings = parse(text, path), Findings()
    data = document.data
    lists: dict[str, tuple[str, ...]] = {}
    if not isinstance(data, dict) or "allow" not in data:
        hint = "write 'allow: {...}'"
        findings.add("", data, Unfit("a mapping with the key 'allow'", hint, code="policy"))
    else:
        known_items(data, "", ("allow",), {}, findings)
        allow = data["allow"]
        if not isinstance(allow, dict):
            expected = f"a mapping of lists ({one_of(LISTS)})"
            findings.add("allow", allow, Unfit(expected, code="policy"))
        else:
            known = known_items(allow, "allow", LISTS, {}, findings)
            lists = {name: _read_patterns(name, value, findings) for name, value in known.items()}
    try:
        findings.raise_if_any()
    except ConfigError as error:
        # where each stands
        placed = []
        for each in error.problems:
            parts = [int(part) if part.isdecimal() else part for part in parts_of(each.key)]
            line = document.lines.nearest(parts)
            placed.append(replace(each, key=each.key.lstrip("."), file=path, line=line))
        raise ConfigError(tuple(placed)) from None
    return Policy(path, **lists)


def _read_patterns(name: str, value: Any, findings: Findings) -> tuple[str, ...]:
    key = f"allow.{name}"
    if not isinstance(value, list):
        hint = f"write [{value!r}]" if isinstance(value, str) else ""
        hint = "leave it out, or write []" if value is None else hint
        findings.add(key, value, Unfit("a list of patterns", hint, code="policy"))
        return ()
    read = partial(_read_pattern, of_paths=name == "paths")
    found = [findings.attempt(f"{key}[{place}]", item, read) for place, item in enumerate(value)]
    return tuple(item for item in found if item is not None)


def _read_pattern(item: object, *, of_paths: bool) -> str:
    if not isinstance(item, str):
        hint = "" if item is None or isinstance(item, (dict, list)) else "quote it"
        raise Unfit("text", hint, code="policy")
    if not item or item != item.strip():
        raise Unfit("text without blanks around it", code="policy")
    if of_paths and not item.startswith("/"):
        raise Unfit("an absolute path", "those in the tree are allowed anyway", code="policy")
    return item
