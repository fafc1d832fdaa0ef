"""``python -m lllaunch init``: write conf/exp/NAME.yaml from a script or a torchrun command."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from lllaunch.app.command_line import program
from lllaunch.app.compose import Composition, ConfigRequest, add_hydra_flags, review_run
from lllaunch.app.planning import DIRECTORY
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.files import naming, write_atomic
from lllaunch.verbs.plan import experiment_text
from lllaunch.verbs.printing import Parser, perform, print_lines

_DESCRIPTION = """\
Write conf/exp/NAME.yaml, which runs what a command line runs: a script with torchrun's options,
with or without the word torchrun, and overrides. NAME is that of the script, or of --name.

  {0} init train.py --lr 0.1
  {0} init torchrun --nproc-per-node=2 train.py --lr 0.1"""


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("init", _DESCRIPTION.format(program()))
    parser.add_argument("--name", help="name of the file, without .yaml; default: the script's")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    add_hydra_flags(parser)
    return perform(parser, argv, _init, takes_script=True)


def _init(given: argparse.Namespace) -> None:
    if not given.has_script:
        hint = f"\n  {program()} init SCRIPT"
        raise ConfigError((Diagnostic("missing", "", "init", "expected a script", hint),))
    composed = Composition(ConfigRequest.of(given))
    run = review_run(composed)
    name = given.name or re.split(r"[./: ]", run.spec.entrypoint.text.removesuffix(".py"))[-1]
    if not re.fullmatch(r"\w[\w-]*", name, re.ASCII):
        message = "is not a name of letters, digits, _ and -"
        raise ConfigError((Diagnostic("text", "--name", repr(name), message),))
    path = os.path.join(DIRECTORY, "exp", f"{name}.yaml")
    if os.path.lexists(path) and not given.force:
        hint = "replace it with --force, or choose another name with --name"
        raise ConfigError((Diagnostic("file", path, "", "already exists", hint),))
    with naming(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, experiment_text(run).encode())
    next_words = {
        f"plan +exp={name}": "print what would run",
        f"+exp={name}": "run it",
        f"plan --lock +exp={name}": "write down that this plan is reviewed",
    }
    lines = [
        f"  {program()} {words:<{len(name) + 17}}   # {what}" for words, what in next_words.items()
    ]
    print_lines([f"wrote {path}; next:", *lines])
