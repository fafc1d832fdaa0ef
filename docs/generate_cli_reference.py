"""Writes docs/reference/cli.md from the parsers of the verbs and the flags of the command line.

Run it as ``python docs/generate_cli_reference.py`` after a change there; a test compares.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from lllaunch import verbs
from lllaunch.app.command_line import FLAGS, OPTIONS, OWN_FLAGS, VERBS

PAGE = Path(__file__).parent / "reference" / "cli.md"

HEAD = """\
# Command line

<!-- Made by docs/generate_cli_reference.py from the parsers in lllaunch/verbs: change those. -->

`lllaunch` and `python -m lllaunch` are the same command. It runs an experiment, or one of the
verbs below. See also: [exit codes](exit-codes.md).

## Run

```text
lllaunch train.py [ARGUMENT ...]             a script
lllaunch [OPTION ...] train.py               a script, with torchrun's options
lllaunch +exp=NAME [KEY=VALUE ...]           the experiment conf/exp/NAME.yaml
lllaunch -m +exp=NAME KEY=VALUE,VALUE ...    a sweep over values
```

`KEY=VALUE` is an override as Hydra takes it. [The launch node](config.md) lists the keys. [Come
from torchrun](../howto/migrate-from-torchrun.md#flags-and-keys) lists torchrun's options and their
keys.

| flag | meaning |
|---|---|
"""

MEANINGS = {
    ("-q", "--quiet"): "print nothing while all goes well",
    ("-m", "--multirun"): "run a sweep: each combination of the values is a job",
    ("-r", "--run"): "run a single job, also where the config asks for a sweep",
    ("-h", "--help"): "show the usage, the config groups and all settings",
    ("-V", "--version"): "show the versions of lllaunch, torch, Hydra and Python",
    ("-c", "--cfg"): "print the composed config (`job`, `hydra` or `all`) and exit",
    ("-p", "--package"): "with `--cfg`: print this part of the config",
    ("--resolve",): "with `--cfg`: resolve interpolations",
    ("-cn", "--config-name"): "name of the primary config",
    ("-cp", "--config-path"): "directory of the configs, in place of `conf`",
    ("-cd", "--config-dir"): "directory that is searched first",
    ("-i", "--info"): "print what Hydra knows: `all`, `config`, `defaults`, `defaults-tree`,"
    " `plugins`, `searchpath`",
    ("-sc", "--shell-completion"): "completion for bash, zsh or fish: `install=SHELL`,"
    " `uninstall=SHELL`",
    ("--hydra-help",): "show Hydra's own help",
}


def flags() -> Iterator[str]:
    """Yield a row for each flag of a run."""
    if {*FLAGS, *OWN_FLAGS, "-V"} != {name for names in MEANINGS for name in names}:
        raise ValueError("MEANINGS does not have the flags of lllaunch.app.command_line")
    for names, meaning in MEANINGS.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {meaning} |\n"


def torchrun() -> str:
    """Return the table of torchrun's options."""
    rows = [
        f"| `--{name}` | {f'`{each.setting}`' if each.setting else ''} | {cell(each.note)} |\n"
        for name, each in OPTIONS.items()
    ]
    return "\n| option of torchrun | sets | note |\n|---|---|---|\n" + "".join(rows)


def prose(text: str) -> str:
    """Return text of a parser as Markdown: indented or listed lines stay as they are."""
    parts = []
    for part in re.split(r"\n\n+", text.strip()):
        if re.search(r"^\s", part, re.MULTILINE):
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(re.sub(r"(?<![\w`/-])(-{1,2}[a-z][\w-]*)", r"`\1`", part))
    return "\n\n".join(parts)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def section(verb: str) -> str:
    """Return the section of one verb."""
    main = verbs.verb(verb)
    with mock.patch(f"{main.__module__}.perform") as perform:
        main([])
    parser: argparse.ArgumentParser = perform.call_args.args[0]
    words, rows = [f"lllaunch {verb}"], []
    actions = [each for each in parser._actions if each.dest != "help"]
    if any(each.option_strings for each in actions):
        words.append("[OPTION ...]")
    for each in actions:
        name = each.metavar or each.dest.upper()
        if each.option_strings:
            value = ""
            if each.nargs != 0:
                value = f" {{{','.join(each.choices)}}}" if each.choices else f" {name}"
            shown = ", ".join(f"`{flag}{value}`" for flag in each.option_strings)
        else:
            words.append(f"[{name}]" if each.nargs == "?" else f"[{name} ...]")
            shown = f"`{name}`"
        rows.append(f"| {cell(shown)} | {cell(each.help or '')} |\n")
    parts = [f"## {verb}", f"```text\n{' '.join(words)}\n```", prose(parser.description or "")]
    if rows:
        parts.append("| argument | meaning |\n|---|---|\n" + "".join(rows).rstrip())
    if parser.epilog:
        parts.append(prose(parser.epilog))
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """Return the whole page, in which the program is called lllaunch."""
    with mock.patch("sys.argv", ["lllaunch"]):
        return "\n".join([HEAD + "".join(flags()) + torchrun(), *map(section, sorted(VERBS))])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
