"""``resources``: what each worker needs of the machine."""

from __future__ import annotations

from lllaunch.config.fields import known_items, read_count, read_items
from lllaunch.config.settings import Settings
from lllaunch.errors import Unfit
from lllaunch.spec import Resources

RESOURCE_KEYS = Resources._fields
SYNONYMS = {
    "gpus": "gpus_per_proc",
    "cpus": "cpus_per_proc",
    "gpus_per_task": "gpus_per_proc",
    "cpus_per_task": "cpus_per_proc",
}


def read_resources(settings: Settings) -> Resources:
    """Reads ``resources``."""
    tree, key, findings = settings["resources"], settings.key_of("resources"), settings.findings
    if tree is not None and not isinstance(tree, dict):
        findings.attempt(key, tree, _refuse)
        tree = None
    items = known_items(tree or {}, key, RESOURCE_KEYS, SYNONYMS, findings)
    return Resources(**read_items(items, key, dict.fromkeys(RESOURCE_KEYS, read_count), findings))


def _refuse(value: object) -> None:
    number = isinstance(value, int) and not isinstance(value, bool)
    hint = f"did you mean {{gpus_per_proc: {value}}}?" if number else ""
    raise Unfit(f"a mapping of numbers ({', '.join(RESOURCE_KEYS)})", hint, code="type")
