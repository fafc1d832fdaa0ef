"""``env`` and ``env_per_rank``: variables of the workers."""

from __future__ import annotations

from functools import partial
from typing import Any

from lllaunch.agent.environ import CONTRACT_NAMES
from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.ranks import check_within, overlap, parse_ranks
from lllaunch.config.secrets import source_for
from lllaunch.config.tree import Tree, Withheld
from lllaunch.secret_names import is_secret_name
from lllaunch.units import write_range

# With what stands in the contract: set by the launcher for each worker.
CONTRACT_PREFIXES = ("TORCHELASTIC_", "LLLAUNCH_")


def read_env(tree: Tree, key: str, findings: Findings) -> dict[str, Tree]:
    """Reads variables.

    Args:
        tree: a mapping of names to text or whole numbers; None for none.
        key: its key, for messages.
        findings: takes what is wrong.

    Returns:
        Texts by name, sorted, those that are secrets withheld.
    """
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        findings.add(key, tree, Unfit("a mapping of variables (NAME: value)"))
        return {}
    env = {}
    for name, value in tree.items():
        where = f"{key}.{name}"
        known = findings.attempt(where, name, _name)
        text = findings.attempt(where, value, _text)
        if known is not None and text is not None:
            env[known] = _mark(known, text, value)
    return dict(sorted(env.items()))


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise Unfit("the name of a variable, text", "quote the name")
    if not name or "=" in name or "\0" in name:
        raise Unfit("the name of a variable, without '=' and NUL characters")
    if name in CONTRACT_NAMES or name.startswith(CONTRACT_PREFIXES):
        raise Unfit("a variable that the launcher does not set for each worker", "leave it out")
    return name


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise Unfit("text, as a variable has one value")
    if value is None:
        raise Unfit("text", "quote it, or leave the variable out")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        hint = "quote it (in a shell NAME=\"'...'\"): YAML may have changed how it was written"
        raise Unfit("text", hint)
    text = str(value)
    if "\0" in text:
        raise Unfit("text without NUL characters")
    return text


def _mark(name: str, text: str, value: Tree) -> Tree:
    if isinstance(value, Withheld):
        return Withheld(text, value.source)
    return Withheld(text, source_for(name)) if is_secret_name(name) else text


def read_env_per_rank(
    tree: Tree, key: str, nproc: int | None, findings: Findings
) -> dict[range, dict[str, Tree]]:
    """Reads variables by local rank.

    Args:
        tree: a mapping of ranks or ranges to variables; None for none.
        key: its key, for messages.
        nproc: number of workers, None if it is not known.
        findings: takes what is wrong.

    Returns:
        Variables by ranks, in order of ranks.
    """
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        expected = "a mapping of local ranks to variables (0: {NAME: value})"
        findings.add(key, tree, Unfit(expected))
        return {}
    env: dict[range, dict[str, Tree]] = {}
    for ranks, variables in tree.items():
        where = f"{key}.{ranks}"
        numbers = findings.attempt(where, ranks, partial(_ranks, nproc=nproc))
        own = read_env(variables, where, findings)
        if numbers in env:
            findings.add(key, ranks, Unfit("each rank at most once"))
        elif numbers is not None:
            env[numbers] = own
    shared = overlap(list(env))
    if shared:
        first, second = (write_range(ranks) for ranks in shared)
        findings.add_about(key, f"expected each rank at most once, got {first} and {second}")
    return dict(sorted(env.items(), key=lambda item: item[0].start))


def _ranks(value: object, nproc: int | None) -> range:
    ranks = parse_ranks(value)
    if nproc is not None:
        check_within(ranks, nproc)
    return ranks
