"""``resources``: what each worker needs of the machine."""

from __future__ import annotations

from lllaunch.config.fields import mapping_items, read_count, read_items
from lllaunch.config.settings import Settings
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
    items = mapping_items(tree, key, RESOURCE_KEYS, SYNONYMS, findings, of="numbers", hint=_meant)
    return Resources(**read_items(items, key, dict.fromkeys(RESOURCE_KEYS, read_count), findings))


def _meant(value: object) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return f"did you mean {{gpus_per_proc: {value}}}?" if number else ""
