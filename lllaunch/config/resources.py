"""``resources``: what each worker needs of the machine."""

from __future__ import annotations

from lllaunch.config.fields import known_items, read_count
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, reveal
from lllaunch.errors import Unfit
from lllaunch.spec import Resources

RESOURCE_KEYS = Resources._fields
SYNONYMS = {
    **dict.fromkeys(("gpus", "gpu", "num_gpus", "ngpus", "n_gpus"), "gpus_per_proc"),
    **dict.fromkeys(("gpus_per_worker", "gpus_per_rank", "gpus_per_task"), "gpus_per_proc"),
    **dict.fromkeys(("cpus", "cpu", "num_cpus", "ncpus", "n_cpus", "cores"), "cpus_per_proc"),
    **dict.fromkeys(("cpus_per_worker", "cpus_per_rank", "cpus_per_task"), "cpus_per_proc"),
    **dict.fromkeys(("threads", "slots"), "cpus_per_proc"),
    **dict.fromkeys(("nproc", "procs", "workers"), "launch.nproc"),
    **dict.fromkeys(("memory", "mem", "ram"), "launch.watchdog.memory"),
}


def read_resources(settings: Settings) -> Resources:
    """Reads ``resources``."""
    key, findings = settings.key_of("resources"), settings.findings
    tree = settings["resources"]
    if tree is not None and not isinstance(tree, dict):
        findings.attempt(key, tree, _refuse)
        tree = None
    items = known_items(tree or {}, key, RESOURCE_KEYS, SYNONYMS, findings)
    values: dict[str, int] = {}
    for name, item in items.items():
        if reveal(item) is not None and item is not BROKEN:
            number = findings.attempt(f"{key}.{name}", item, read_count)
            values.update({} if number is None else {name: number})
    return Resources(**values)


def _refuse(value: object) -> None:
    number = isinstance(value, int) and not isinstance(value, bool)
    hint = f"did you mean {{gpus_per_proc: {value}}}?" if number else ""
    raise Unfit(f"a mapping of numbers ({', '.join(RESOURCE_KEYS)})", hint, code="type")
