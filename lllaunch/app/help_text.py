"""What ``--help`` shows below the usage: commands, options and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import shorten

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch import launch_settings
from lllaunch.app import torchrun
from lllaunch.app.command_line import VERBS

_FORMS = """\

A script runs as under torchrun: its options have their names here, spelt with dashes or
underscores, or PET_NAME in the environment. Everything after the script belongs to the script.
Overrides and Hydra's options may precede it. -m MODULE runs a module, and any other -m is
Hydra's --multirun: a sweep. Without --redirects and --tee the output of all workers goes to
files, and that of rank 0 to the console as well. `{0} plan ... SCRIPT ...` prints the YAML that
runs the same.
"""
_VALUES = """\

duration: seconds, or text such as 90s, 10m, 1h30m. size: bytes, or text such as 512MiB, 16GB.
mask: none, out, err or all, or by rank as '0:all 1-7:out'. null: not set.
See also: docs/reference/config.md.
"""
_OTHERS = """\

other options:
  -q, --quiet              print nothing while all goes well
  --version                print the versions of lllaunch, torch, Hydra and Python
  --cfg job                print the composed config, and run nothing
  --config-name, --config-dir, --info, ...: Hydra's; see {0} --hydra-help
  -sc install=SHELL        print completion for SHELL (bash, zsh or fish):
                             bash, zsh: eval "$(lllaunch -sc install=bash)"
                             fish:      lllaunch -sc install=fish | source
"""
_TYPES = {
    **dict.fromkeys(("int", "Count"), "number"),
    **dict.fromkeys(("Mapping", "Mask", "Ranks", "bool")),
    **dict.fromkeys(("str", "Line", "Method", "Prefix"), "text"),
    **dict.fromkeys(("Sequence", "Keys"), "list"),
    **dict.fromkeys(("Signals", "Texts"), "list|text"),
    "Duration": "duration [s]",
    "Flag": "bool",
    "Interval": "duration [s]|bool",
    "Lock": "bool|text",
    "Size": "size [B]",
}


def help_text(program: str) -> str:
    """Return it, for the way in which lllaunch was called."""
    options = [
        (
            f"--{name}{' X' if each.takes_value else ''}",
            "; ".join(filter(None, (each.setting, each.note))),
        )
        for name, each in torchrun.OPTIONS.items()
    ]
    lines = [
        f"\ncommands ({program} COMMAND --help prints more):",
        *_aligned(VERBS.items()),
        _FORMS.format(program),
        "options of torchrun, and the setting that each sets:",
        *_aligned(options),
        _OTHERS.format(program),
        "settings (launch.KEY=VALUE, or KEY below launch in a YAML):",
        *_aligned([("KEY", "TYPE", "DEFAULT", ""), *_settings()]),
        _VALUES,
    ]
    return "\n".join(lines)


def _settings() -> Iterator[tuple[str, ...]]:
    texts = launch_settings.field_docs()
    for each in launch_settings.SETTINGS:
        text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(texts[each.name].split()))
        sentence = re.split(r"\.(?= |$)|;|(?<=[a-z]): ", text, maxsplit=1)[0].replace("`", "")
        words = re.sub(r"\[.*?\](?= \||$)", "", each.kind).split(" | ")
        kinds = dict.fromkeys(_TYPES[word] or word.lower() for word in words if word != "None")
        default: str = yaml.safe_dump(each.default, default_flow_style=True, width=1000)
        default = shorten(default.strip().removesuffix("...").strip(), 32)
        yield each.name, "|".join(kinds), default, shorten(sentence, 62)


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return lines of columns; the last one may be of any length."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
