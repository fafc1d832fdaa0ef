"""``restart``: what a failed group of workers is started again for, how soon, and how often."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from lllaunch.config.fields import (
    Findings,
    hinted,
    mapping_items,
    read_choice,
    read_each,
    read_items,
    read_positive,
    read_text,
)
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, Tree, reveal, show
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import RESTART_CAUSES, RestartCause, RestartPolicy

RESTART_KEYS = tuple(field.name for field in dataclasses.fields(RestartPolicy))
SYNONYMS = {"max_restarts": "launch.max_restarts"}
_CAUSES = f"a list of causes ({', '.join(RESTART_CAUSES)})"


def read_restart(settings: Settings) -> RestartPolicy:
    """Read ``restart``."""
    tree, key, findings = settings["restart"], settings.key_of("restart"), settings.findings
    items = mapping_items(tree, key, RESTART_KEYS, SYNONYMS, findings, hint=_meant)
    before = findings.count
    values: dict[str, Any] = {}
    if "on" in items:
        values["on"] = _read_causes(items["on"], f"{key}.on", findings)
    values |= read_items(items, key, _READERS, findings)
    if findings.count > before or BROKEN in items.values():
        # what is left is not compared with a default that nobody chose
        return RestartPolicy()
    policy = RestartPolicy(**values)
    if policy.delay > policy.max_delay:
        longest = show(items.get("max_delay", format_duration(policy.max_delay)))
        message = f"is more than {key}.max_delay, which is {longest}"
        unfit = Unfit(message=message, hint="set max_delay as well", code="duration")
        findings.add(f"{key}.delay", items["delay"], unfit)
    return policy


def with_on(tree: Tree) -> Tree:
    """A value of ``restart`` with ``on`` under its name: for YAML an unquoted ``on`` is true.

    Where both are there, ``on`` is what the command line said, which comes after all files.
    """
    if not isinstance(tree, dict) or not any(name is True for name in tree):
        return tree
    return {"on": tree[True], **{name: item for name, item in tree.items() if name is not True}}


def _meant(value: object) -> str:
    if isinstance(value, (str, list)):
        return "causes go under 'on': {on: [hang, oom]}"
    return "max_restarts says how often" if isinstance(value, (bool, int)) else ""


def _read_causes(tree: Tree, key: str, findings: Findings) -> frozenset[RestartCause] | None:
    before = findings.count
    plain = reveal(tree)
    if plain is False:
        return frozenset()
    if plain is None or plain is True or plain == "" or isinstance(plain, dict):
        findings.add(key, tree, Unfit(_CAUSES, "write all or none", code="choice"))
        return None
    read = partial(read_choice, choices=(*RESTART_CAUSES, "all", "none"))
    causes = {*read_each(tree, key, findings, read)}
    if "none" in causes and len(causes) > 1:
        findings.add(key, tree, Unfit("causes or 'none', not both", code="choice"))
    if findings.count > before or tree is BROKEN:
        return None
    if "all" in causes:
        return frozenset(RESTART_CAUSES)
    return frozenset(cast("set[RestartCause]", causes - {"none"}))


_READERS: dict[str, Callable[[object], Any]] = {
    "delay": parse_duration,
    "max_delay": parse_duration,
    "window": hinted(partial(parse_duration, zero=False), "null is for as long as the run goes on"),
    "reset_on": hinted(partial(read_choice, choices=("progress",)), "", "progress or null"),
    "max_without_progress": read_positive,
    "checkpoint": read_text,
    "gpu_wait": parse_duration,
}


def written_restart(policy: RestartPolicy) -> dict[str, Any]:
    """Return all settings of a policy, in their order, as a config would say them."""
    on = [cause for cause in RESTART_CAUSES if cause in policy.on]
    return {
        "on": "all" if len(on) == len(RESTART_CAUSES) else on,
        "delay": format_duration(policy.delay),
        "max_delay": format_duration(policy.max_delay),
        "window": None if policy.window is None else format_duration(policy.window),
        "reset_on": policy.reset_on,
        "max_without_progress": policy.max_without_progress,
        "checkpoint": policy.checkpoint,
        "gpu_wait": format_duration(policy.gpu_wait),
    }
