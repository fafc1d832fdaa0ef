"""``restart``: what a failed group of workers is started again for, and how soon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lllaunch.config.fields import Findings, known_items, read_choice, read_each
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, Tree, reveal, show
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import RESTART_CAUSES, RestartCause, RestartPolicy

RESTART_KEYS = ("on", "delay", "max_delay")
SYNONYMS = {
    **dict.fromkeys(("causes", "cause", "reasons", "for", "when", "if", "after"), "on"),
    **dict.fromkeys(("backoff", "wait", "pause", "min_delay", "interval", "sleep"), "delay"),
    **dict.fromkeys(("max_backoff", "max_wait", "delay_max", "limit"), "max_delay"),
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
}
_CAUSE_HINTS = {
    **{word: f"did you mean {cause!r}?" for word, cause in CAUSE_SYNONYMS.items()},
    **dict.fromkeys(("any", "every", "always", "true", "yes"), "did you mean 'all'?"),
    **dict.fromkeys(("never", "no", "false", "off", "null"), "did you mean 'none'?"),
}
_CAUSES = f"a list of causes ({', '.join(RESTART_CAUSES)})"


def read_restart(settings: Settings) -> RestartPolicy:
    """Reads ``restart``.

    Args:
        settings: of the launch node; what is wrong goes to their findings.
    """
    tree, key, findings = settings["restart"], settings.key_of("restart"), settings.findings
    if tree is not None and not isinstance(tree, dict):
        findings.attempt(key, tree, _refuse)
        tree = None
    items = known_items(tree or {}, key, RESTART_KEYS, SYNONYMS, findings)
    values: dict[str, Any] = {}
    if "on" in items:
        values["on"] = _read_causes(items["on"], f"{key}.on", findings)
    for name in ("delay", "max_delay"):
        if name in items:
            values[name] = findings.attempt(f"{key}.{name}", items[name], parse_duration)
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


def written_restart(policy: RestartPolicy, *, several: bool = False) -> dict[str, Any]:
    """All settings of a policy, in their order, as a config would say them.

    Args:
        policy: what a run is started again for.
        several: whether the run may have several nodes. Then, and only then, `FIRST_CAUSES` are not
            as good as all; as text they are not taken for the list that they were in old plans.
    """
    on: str | list[str] = [cause for cause in RESTART_CAUSES if cause in policy.on]
    if len(on) == len(RESTART_CAUSES):
        on = "all"
    elif several and on == [*FIRST_CAUSES]:
        on = ",".join(on)
    return {
        "on": on,
        "delay": format_duration(policy.delay),
        "max_delay": format_duration(policy.max_delay),
    }
