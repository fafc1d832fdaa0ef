"""What ``--help`` and completion in a shell print.

Hydra's own completion knows neither commands nor torchrun's options, and prints why it cannot
compose. Its scripts for bash, zsh and fish are used as they are.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import shorten

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch import launch_settings
from lllaunch.app.command_line import FLAGS, OPTIONS, VERBS, WrongUsage, read

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
# What a command takes that may be left out; it also takes the ids of batch jobs.
_LATEST = ("logs", "show", "stacks", "report", "rerun", "stop", "top", "wait")
# Those that take what a run takes.
_OF_RUNS = ("", "plan", "init")


def help_text(program: str) -> str:
    """Return it, for the way in which lllaunch was called."""
    options = [
        (
            f"--{name}{' X' if each.takes_value else ''}",
            "; ".join(filter(None, (each.setting, each.note))),
        )
        for name, each in OPTIONS.items()
    ]
    lines = [
        f"\ncommands ({program} COMMAND --help prints more):",
        *_aligned(VERBS.items()),
        _FORMS.format(program),
        "options of torchrun, and the setting that each sets:",
        *_aligned(options),
        _OTHERS.format(program),
        "settings (launch.KEY=VALUE, or KEY below launch in a YAML):",
        *_aligned([("KEY", "DEFAULT", ""), *_settings()]),
        _VALUES,
    ]
    return "\n".join(lines)


def _settings() -> Iterator[tuple[str, ...]]:
    texts = launch_settings.field_docs()
    for each in launch_settings.SETTINGS:
        text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(texts[each.name].split()))
        sentence = re.split(r"\.(?= |$)|;|(?<=[a-z]): ", text, maxsplit=1)[0].replace("`", "")
        default: str = yaml.safe_dump(each.default, default_flow_style=True, width=1000)
        default = shorten(default.strip().removesuffix("...").strip(), 32)
        yield each.name, default, shorten(sentence, 72)


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return lines of columns; the last one may be of any length."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def choices(
    line: str,
    run: Callable[[list[str]], int],
    flags_of: Callable[[str], Mapping[str, int | None]],
) -> list[str]:
    """Return what the last word of a line may become.

    ``run`` is Hydra's app, called with a command line of its own; ``flags_of`` returns the options
    of a command.
    """
    # without the program
    *words, last = line.split(" ")[1:] or [""]
    words = [word for word in words if word]
    verb = words.pop(0) if words and words[0] in VERBS else ""
    flags = flags_of(verb) if verb else FLAGS
    found = ["latest"] if verb in _LATEST and not words else []
    if not words and not verb:
        found += VERBS
    if last.startswith("-"):
        found = [flag for flag in flags if flag.startswith("--")]
        if verb in _OF_RUNS:
            spelt = "_" if "_" in last else "-"
            found += [f"--{name.replace('-', spelt)}" for name in OPTIONS]
    elif verb in _OF_RUNS:
        try:
            line_read = read(words, flags)
        except WrongUsage:
            return []
        if line_read.has_script:
            return []
        for path in glob.glob(f"{glob.escape(last)}*"):
            found += [f"{path}/"] if os.path.isdir(path) else [path] * path.endswith(".py")
        # what Hydra would complete
        os.environ["COMP_LINE"] = " ".join(["lllaunch", *line_read.words, last])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(Exception, SystemExit):
            run(["-sc", "query=bash"])
        # no experiment is chosen yet that could be overridden
        found += ["+exp=" if each == "exp=" else each for each in printed.getvalue().split()]
    return sorted({choice for choice in found if choice.startswith(last)})
