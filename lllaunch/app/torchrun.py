"""torchrun's options as overrides of the ``launch`` node.

They are those of torch 2.13 (``get_args_parser`` in torch/distributed/run.py). Each may be spelt
with dashes or underscores, and stand in the environment as PET_NAME, as torchrun has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from lllaunch.cluster.values import format_endpoint


class Option(NamedTuple):
    """An option of torchrun: the setting of ``launch`` that it sets, or a note on what to do."""

    setting: str = ""
    note: str = ""
    takes_value: bool = True


OPTIONS: dict[str, Option] = {
    "nproc-per-node": Option("launch.nproc"),
    "nnodes": Option("launch.nnodes"),
    "node-rank": Option("launch.node_rank"),
    "rdzv-backend": Option("launch.rdzv.backend"),
    "rdzv-endpoint": Option("launch.rdzv.endpoint"),
    "rdzv-id": Option("launch.rdzv.id"),
    "rdzv-conf": Option("launch.rdzv.conf"),
    "master-addr": Option("", "the host of launch.rdzv.endpoint; one node does not need it"),
    "master-port": Option("", "its port; on one node each attempt takes a free port"),
    "local-addr": Option("", "write launch.rdzv.interface=NAME instead; one node does not need it"),
    "standalone": Option("", "one node, which is the default", takes_value=False),
    "max-restarts": Option("launch.max_restarts"),
    "start-method": Option("launch.start_method"),
    "role": Option("launch.role"),
    "module": Option("", "-m too: run the module that follows", takes_value=False),
    "no-python": Option("", "run a program instead of a Python script", takes_value=False),
    "run-path": Option("", "not needed: workers are forked", takes_value=False),
    "log-dir": Option("launch.log_dir"),
    "redirects": Option("launch.redirects", "-r too; without --tee nothing else is shown"),
    "tee": Option("launch.tee", "-t too"),
    "local-ranks-filter": Option("launch.local_ranks_filter"),
    "duplicate-stdout-filters": Option("launch.duplicate_stdout_filters"),
    "duplicate-stderr-filters": Option("launch.duplicate_stderr_filters"),
    "log-line-prefix-template": Option("launch.log_line_prefix"),
    "signals-to-handle": Option("launch.signals"),
    "shutdown-timeout": Option("launch.grace_period"),
    "virtual-local-rank": Option("launch.virtual_local_rank", takes_value=False),
    "monitor-interval": Option("", "not needed: lllaunch does not poll"),
    "event-log-handler": Option("", "not supported; events go to events.jsonl of the run"),
    "logs-specs": Option("", "not supported; write launch.redirects, launch.tee, launch.log_dir"),
    "numa-binding": Option(
        "", "not supported; write --no-python numactl --cpunodebind=N python SCRIPT"
    ),
}

SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}

# Where else torchrun looks, and where it does not look.
_VARIABLES = {
    "shutdown-timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "log-line-prefix-template": "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
}
_ONLY_SAID = ("logs-specs", "numa-binding")
_REFUSED = ("event-log-handler", "logs-specs", "numa-binding", "local-addr")
_ONE_NODE = ("1", "1:1")
_OF_SEVERAL = ("nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "local-addr")
_FILTERS = ("duplicate-stdout-filters", "duplicate-stderr-filters")


class Unsupported(ValueError):
    """An option that cannot be obeyed; its text says what to write."""


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that variables give."""
    found = {}
    for name, option in OPTIONS.items():
        variable = f"PET_{name.replace('-', '_').upper()}"
        value = environ.get(variable) or environ.get(_VARIABLES.get(name, ""))
        off = not option.takes_value and value == "0"
        if value and not off and name not in _ONLY_SAID:
            found[name] = value
    return found


def overrides(given: Mapping[str, str], *, alone: bool) -> list[str]:
    """Return the overrides that say what options say.

    ``given`` has values by name; any text for a flag. ``alone``: they and a script are the run, and
    torchrun's defaults hold: of several nodes, and of streams if one of ``--redirects`` and
    ``--tee`` is given. Otherwise they change what an experiment says.

    Raises:
        Unsupported: one cannot be obeyed.
    """
    options = dict(given)
    one_node = alone and options.get("nnodes", "1") in _ONE_NODE
    if "standalone" in options and options.get("nnodes", "1") not in _ONE_NODE:
        raise Unsupported(f"--standalone is for one node, and --nnodes is {options['nnodes']}")
    if one_node:
        dropped = (*_OF_SEVERAL, *(["rdzv-id"] if "standalone" in options else []))
        options = {name: value for name, value in options.items() if name not in dropped}
    for name, value in options.items():
        if name in _REFUSED and (name, value) != ("event-log-handler", "null"):
            raise Unsupported(f"--{name}: {OPTIONS[name].note}")
    if alone and not {"redirects", "tee"}.isdisjoint(options):
        options = {"redirects": "0", "tee": "0", **options}
    if not one_node:
        # as torchrun finds where the nodes meet
        first = {"rdzv-backend": "static", **options} if alone else dict(options)
        if alone and first["rdzv-backend"] == "static":
            first = {"node-rank": "0", "master-addr": "127.0.0.1", **first}
        if "master-addr" in first and "rdzv-endpoint" not in first:
            host = format_endpoint(first["master-addr"].strip("[]"), None)
            first["rdzv-endpoint"] = f"{host}:{first.get('master-port', '29500')}"
        options = first
    return [
        f"{setting}={_converted(name, options[name])}"
        for name, (setting, *_) in OPTIONS.items()
        if setting and name in options
    ]


def _converted(name: str, text: str) -> str:
    if not OPTIONS[name].takes_value:
        return "true"
    if name in _FILTERS:
        # a comma that is written twice is one
        items = [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]
        return f"[{','.join(map(quoted, items))}]"
    return quoted(text)


def quoted(word: str) -> str:
    """Return a word as Hydra's grammar takes it, so that it comes out as the same text."""
    try:
        number = float(word)
        plain = word in {repr(number), str(int(number)) if number.is_integer() else ""}
    except (ValueError, OverflowError):
        special = word.lower() in {"true", "false", "null"}
        plain = re.fullmatch(r"[A-Za-z_./-][\w./:-]*", word, re.ASCII) is not None and not special
    if plain:
        return word
    # backslashes count before the end of quotes, and before an interpolation
    escaped = re.sub(
        r'(\\*)("|$)', lambda end: end[1] * 2 + ("\\" + end[2] if end[2] else ""), word
    )
    return '"' + re.sub(r"(\\*)\$\{", r"\1\1\\${", escaped) + '"'
