"""``restart``: what a failed group of workers is started again for, how soon, and how often."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from lllaunch.config.fields import (
    Findings,
    known_items,
    read_choice,
    read_count,
    read_each,
    read_text,
)
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, Tree, reveal, show
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import RESTART_CAUSES, RestartCause, RestartPolicy

RESTART_KEYS = tuple(field.name for field in dataclasses.fields(RestartPolicy))
SYNONYMS = {
    **dict.fromkeys(("causes", "cause", "reasons", "for", "when", "if", "after"), "on"),
    **dict.fromkeys(("backoff", "wait", "pause", "min_delay", "interval", "sleep"), "delay"),
    **dict.fromkeys(("max_backoff", "max_wait", "delay_max", "limit"), "max_delay"),
    **dict.fromkeys(("period", "within", "per", "budget_window", "time_window"), "window"),
    **dict.fromkeys(("reset", "reset_budget", "resets_on", "renew_on"), "reset_on"),
    **dict.fromkeys(("no_progress", "max_no_progress", "patience"), "max_without_progress"),
    **dict.fromkeys(("without_progress", "max_failures"), "max_without_progress"),
    **dict.fromkeys(("checkpoints", "ckpt", "checkpoint_dir", "checkpoint_path"), "checkpoint"),
    **dict.fromkeys(("gpu_timeout", "gpu_memory", "wait_for_gpus", "gpu_memory_wait"), "gpu_wait"),
    **dict.fromkeys(("max", "count", "times", "retries", "max_restarts"), "launch.max_restarts"),
}

CAUSE_SYNONYMS: dict[str, RestartCause] = {
    **dict.fromkeys(("error", "exception", "crash", "exit", "failed"), "failure"),
    **dict.fromkeys(("killed", "sigkill", "segfault", "sigsegv"), "signal"),
    **dict.fromkeys(("memory", "mem", "out_of_memory"), "oom"),
    **dict.fromkeys(("hung", "stall", "stalled", "deadlock", "timer", "timers"), "hang"),
    "heartbeat": "hang",
    **dict.fromkeys(("time", "walltime", "run_timeout"), "timeout"),
    **dict.fromkeys(("nodes", "node_lost", "lost", "preempted", "preemption"), "node"),
    **dict.fromkeys(("health_check", "healthcheck", "pre_flight"), "preflight"),
}
_CAUSE_HINTS = {
    **{word: f"did you mean {cause!r}?" for word, cause in CAUSE_SYNONYMS.items()},
    **dict.fromkeys(("any", "every", "always", "true", "yes"), "did you mean 'all'?"),
    **dict.fromkeys(("never", "no", "false", "off", "null"), "did you mean 'none'?"),
}
_CAUSES = f"a list of causes ({', '.join(RESTART_CAUSES)})"


def read_restart(settings: Settings) -> RestartPolicy:
    """Reads ``restart``."""
    tree, key, findings = settings["restart"], settings.key_of("restart"), settings.findings
    if tree is not None and not isinstance(tree, dict):
        findings.attempt(key, tree, _refuse)
        tree = None
    items = known_items(tree or {}, key, RESTART_KEYS, SYNONYMS, findings)
    values: dict[str, Any] = {}
    if "on" in items:
        values["on"] = _read_causes(items["on"], f"{key}.on", findings)
    for name in ("delay", "max_delay", "gpu_wait"):
        if name in items:
            values[name] = findings.attempt(f"{key}.{name}", items[name], parse_duration)
    for name, read in _OPTIONAL.items():
        if name in items and reveal(items[name]) is not None:
            values[name] = findings.attempt(f"{key}.{name}", items[name], read)
    if any(value is None for value in values.values()):
        # Noted; what is left is not compared with a default that nobody chose.
        policy = RestartPolicy()
    else:
        policy = RestartPolicy(**values)
        _check_delays(policy, items, key, findings)
    return policy


def with_on(tree: Tree) -> Tree:
    """A value of ``restart`` with ``on`` under its name: for YAML an unquoted ``on`` is true.

    Where both are there, ``on`` is what the command line said, which comes after all files.
    """
    if not isinstance(tree, dict) or not any(name is True for name in tree):
        return tree
    return {"on": tree[True], **{name: item for name, item in tree.items() if name is not True}}


def _refuse(value: object) -> None:
    hint = ""
    if isinstance(value, (str, list)):
        hint = "causes go under 'on': {on: [hang, oom]}"
    elif isinstance(value, (bool, int)):
        hint = "max_restarts says how often"
    raise Unfit(f"a mapping of settings ({', '.join(RESTART_KEYS)})", hint, code="type")


def _read_causes(tree: Tree, key: str, findings: Findings) -> frozenset[RestartCause] | None:
    before = findings.count
    plain = reveal(tree)
    if plain is False:
        return frozenset()
    if plain is None or plain is True or plain == "" or isinstance(plain, dict):
        findings.add(key, tree, Unfit(_CAUSES, "write all or none", code="choice"))
        return None
    causes = {*read_each(tree, key, findings, _read_cause)}
    if "none" in causes and len(causes) > 1:
        findings.add(key, tree, Unfit("causes or 'none', not both", code="choice"))
    if findings.count > before or tree is BROKEN:
        return None
    if "all" in causes:
        return frozenset(RESTART_CAUSES)
    return frozenset(cast("set[RestartCause]", causes - {"none"}))


def _read_cause(value: object) -> str:
    return read_choice(value, (*RESTART_CAUSES, "all", "none"), _CAUSE_HINTS)


def _read_window(value: object) -> float:
    try:
        return parse_duration(value, zero=False)
    except Unfit as unfit:
        hint = unfit.hint or "null is for as long as the run goes on"
        raise Unfit(unfit.expected, hint, unfit.detail, code=unfit.code) from None


def _read_reset(value: object) -> str:
    hints = {
        "checkpoint": "write progress, and name the path as 'checkpoint'",
        **dict.fromkeys(("step", "steps", "any", "true", "yes"), "did you mean 'progress'?"),
        **dict.fromkeys(("never", "none", "no", "false"), "write null"),
    }
    try:
        return read_choice(value, ("progress",), hints)
    except Unfit as unfit:
        hint = "write null" if value is False else unfit.hint
        raise Unfit("progress or null", hint, code=unfit.code) from None


def _read_attempts(value: object) -> int:
    try:
        number = read_count(value)
    except Unfit as unfit:
        raise Unfit("a whole number, 1 or more", unfit.hint, code=unfit.code) from None
    if not number:
        raise Unfit("a whole number, 1 or more", "write null for no such limit", code="number")
    return number


_OPTIONAL: dict[str, Callable[[object], Any]] = {
    "window": _read_window,
    "reset_on": _read_reset,
    "max_without_progress": _read_attempts,
    "checkpoint": read_text,
}


def _check_delays(
    policy: RestartPolicy, items: Mapping[str, Tree], key: str, findings: Findings
) -> None:
    if policy.delay <= policy.max_delay:
        return
    longest = show(items.get("max_delay", format_duration(policy.max_delay)))
    message = f"is more than {key}.max_delay, which is {longest}"
    unfit = Unfit(message=message, hint="set max_delay as well", code="duration")
    findings.add(f"{key}.delay", items["delay"], unfit)


FIRST_CAUSES = ("failure", "signal", "oom", "hang", "timeout")
"""All that there were before there was ``node``. In plans a list of just these stands for all."""

_WITHOUT_PREFLIGHT = [*FIRST_CAUSES, "node"]


def written_restart(policy: RestartPolicy, *, exact: bool = False) -> dict[str, Any]:
    """Return all settings of a policy, in their order, as a config would say them.

    ``exact``: the run may fail of what is not one of `FIRST_CAUSES`: it may have several nodes, or
    has a preflight. Then, and only then, these are not as good as all; as text they are not taken
    for the list that they were in old plans.
    """
    on: str | list[str] = [cause for cause in RESTART_CAUSES if cause in policy.on]
    if len(on) == len(RESTART_CAUSES):
        on = "all"
    elif exact and on == [*FIRST_CAUSES]:
        on = ",".join(on)
    return {
        "on": on,
        "delay": format_duration(policy.delay),
        "max_delay": format_duration(policy.max_delay),
        "window": None if policy.window is None else format_duration(policy.window),
        "reset_on": policy.reset_on,
        "max_without_progress": policy.max_without_progress,
        "checkpoint": policy.checkpoint,
        "gpu_wait": format_duration(policy.gpu_wait),
    }


def causes_that_can_come(on: object, *, preflight: bool) -> object:
    """Return the causes of a written policy: all, if all are there that can come."""
    return "all" if on == _WITHOUT_PREFLIGHT and not preflight else on
