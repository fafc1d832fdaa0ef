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
        findings.add(key, tree, "is not a mapping of variables (NAME: value)")
        return {}
    env = {}
    for name, value in tree.items():
        where = f"{key}.{name}"
        text = findings.attempt(where, value, partial(_variable, name))
        if text is not None:
            env[name] = _mark(name, text, value)
    return dict(sorted(env.items()))


def _variable(name: Any, value: Any) -> str:
    if not isinstance(name, str):
        raise Unfit("has a name that is no text", "quote the name")
    if not name or "=" in name or "\0" in name:
        raise Unfit("has a name that no variable can have")
    if name in CONTRACT_NAMES or name.startswith(CONTRACT_PREFIXES):
        raise Unfit("may not be set: the launcher sets this variable for each worker")
    if isinstance(value, (dict, list)):
        raise Unfit("is no text: a variable has one value")
    if value is None:
        raise Unfit("is no text", "quote it, or leave the variable out")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Unfit("is no text: YAML may have changed how it was written", "quote it")
    text = str(value)
    if "\0" in text:
        raise Unfit("holds a NUL character, which no variable can")
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
        findings.add(key, tree, "is not a mapping of local ranks to variables (0: {NAME: value})")
        return {}
    env: dict[range, dict[str, Tree]] = {}
    for ranks, variables in tree.items():
        where = f"{key}.{ranks}"
        numbers = findings.attempt(where, ranks, partial(_ranks, nproc=nproc))
        own = read_env(variables, where, findings)
        if numbers in env:
            findings.add(key, ranks, "stands for the same ranks as another key")
        elif numbers is not None:
            env[numbers] = own
    shared = overlap(list(env))
    if shared:
        first, second = (write_range(ranks) for ranks in shared)
        findings.add_about(key, f"names a rank twice: {first} and {second} overlap")
    return dict(sorted(env.items(), key=lambda item: item[0].start))


def _ranks(value: object, nproc: int | None) -> range:
    ranks = parse_ranks(value)
    if nproc is not None:
        check_within(ranks, nproc)
    return ranks
