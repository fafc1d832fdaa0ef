"""The words of a command line, before Hydra reads them: there are three forms.

1. A command and its arguments, if the first word is one of `VERBS`.
2. A script: options and overrides in any order, then the script, then its own words, which nobody
   else reads. The script is the first word that is neither an option (with its value) nor an
   override. An override holds ``=`` or begins with ``~``, and does not begin with ``.`` or ``/``.
   The word ``torchrun`` before its options says nothing.
3. Hydra's: options and overrides alone.

Options are torchrun's (`lllaunch.app.torchrun`), Hydra's and lllaunch's own. Two letters belong to
both: ``-m`` is torchrun's ``--module`` if the name of a module follows, else Hydra's
``--multirun``; ``-r`` is torchrun's ``--redirects`` if a mask follows, else Hydra's ``--run``.

The second form becomes the third: what it says is said by overrides of ``launch``. Hydra's parser
takes an option between overrides for the end of them, so options are put first.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lllaunch.app import torchrun
from lllaunch.app.torchrun import Unsupported, quoted
from lllaunch.run.files import relative_path, working_directory

# What lllaunch calls itself, in a batch job.
HIDDEN_VERBS = ("job",)
VERBS = {
    "check": "report what is wrong in ./conf, and what was not reviewed",
    "init": "write conf/exp/NAME.yaml from a script or a torchrun command",
    "logs": "print what the workers of a run wrote",
    "ls": "list runs and sweeps",
    "plan": "print what would run, and where each value comes from",
    "report": "report a run or a sweep as text, JSON, JUnit XML, a page or a trace",
    "rerun": "repeat a run with the same plan",
    "show": "show how a run ended, when, and what ran",
    "stacks": "show where in the code the workers of a live run are",
    "stop": "stop a run",
    "top": "show what is running, once a second",
    "wait": "wait until a run ends, and exit with its exit code",
}
"""What a command line may begin with, beside what is to be run, and what it does."""

FLAGS: dict[str, int | None] = {
    **dict.fromkeys(("--help", "-h", "--hydra-help", "--version", "-V"), 0),
    **dict.fromkeys(("--cfg", "-c", "--package", "-p"), 1),
    **dict.fromkeys(("--resolve", "--run", "-r", "--multirun", "-m"), 0),
    **dict.fromkeys(("--shell-completion", "-sc"), 0),
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn"), 1),
    **dict.fromkeys(("--config-dir", "-cd", "--experimental-rerun"), 1),
    **dict.fromkeys(("--info", "-i"), None),
    **dict.fromkeys(("--quiet", "-q"), 0),
}
"""Hydra's flags and lllaunch's, and how many words follow each; None for one or none."""

OWN_FLAGS = ("--quiet", "-q")
"""lllaunch's own, which Hydra does not see."""

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# What follows the letters that torchrun and Hydra both have, if torchrun's are meant.
_FORMS = {
    "-m": re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"),
    "-r": re.compile(r"[\d:,]+"),
}
# What may precede torchrun's options.
_TORCHRUN = [
    ["torchrun"],
    *([each, "-m", "torch.distributed.run"] for each in ("python", "python3")),
]
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")

# What others put before what is to be run.
_RUNNERS = ("run", "train", "start", "launch", "exec", "python", "python3")
# What does the same as commands that lllaunch has not.
_ELSEWHERE = {
    "logs": "log tail",
    "logs -f": "follow attach",
    "stop": "kill cancel abort",
    "ls": "list history runs",
    "top": "status ps jobs htop watch monitor live dashboard",
    "show": "info describe inspect results",
    "plan": "dry-run dryrun preview",
    "check": "validate lint",
    "rerun": "retry restart repeat",
    "stacks": "stack pstack dump py-spy",
    "-m +exp=NAME KEY=VALUE,VALUE": "sweep multirun",
    "-m hydra.launcher.resume=DIR": "resume",
    "--cfg job": "config cfg",
    "--version": "version",
    "-sc install=SHELL": "completion",
}


class WrongUsage(Exception):
    """A command line says nothing that could be run; its text says what would."""


class CommandLine(NamedTuple):
    """A command line: flags with values, Hydra's overrides, and whether a script is named."""

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    has_script: bool = False

    @property
    def words(self) -> list[str]:
        """It as Hydra's parser takes it: flags first."""
        return [*(flag for flag in self.flags if flag not in OWN_FLAGS), *self.overrides]

    def asks(self, *flags: str) -> bool:
        """Return whether one of some flags is given."""
        return not set(flags).isdisjoint(self.flags)


def program() -> str:
    """Return how this process was called, such as ``lllaunch`` or ``python train.py``."""
    script = sys.argv[0]
    if os.path.basename(script) == "__main__.py":
        return "python -m lllaunch"
    return shlex.join(["python", _shown(script)]) if script.endswith(".py") else "lllaunch"


def read(
    words: Sequence[str],
    flags: Mapping[str, int | None] = FLAGS,
    *,
    own_app: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> CommandLine:
    """Take a command line apart, whose first word is no command.

    ``own_app``: the words are for a user's own app, which runs no script. Torchrun's options may
    stand in ``environ``, too.

    Raises:
        WrongUsage: there is something in it that is no option, override or script.
    """
    line = _Reader(words, flags)
    script, *arguments = line.left or [""]
    overrides = []
    try:
        if not line.left:
            overrides = torchrun.overrides(line.options, alone=False)
        elif own_app:
            raise _of_own_app(script)
        else:
            options = {**torchrun.from_environment(environ), **line.options}
            entrypoint = _entrypoint(script, options)
            if not entrypoint:
                raise _of_word(script, words if flags is FLAGS else (), line)
            overrides = torchrun.overrides(options, alone=True)
            overrides[:0] = [f"launch.entrypoint={quoted(entrypoint)}"]
    except Unsupported as error:
        raise WrongUsage(str(error)) from None
    overrides += line.overrides
    if arguments:
        overrides.append(f"launch.args=[{','.join(map(quoted, arguments))}]")
    return CommandLine(tuple(line.found), tuple(overrides), bool(line.left))


class _Reader:
    """Sorts the words before a script; ``left`` is the script and its words."""

    def __init__(self, words: Sequence[str], flags: Mapping[str, int | None]) -> None:
        self.left = list(words)
        self.found: list[str] = []
        self.options: dict[str, str] = {}
        self.overrides: list[str] = []
        self._flags = flags
        plain = False
        while self.left:
            if start := next((each for each in _TORCHRUN if self.left[: len(each)] == each), []):
                del self.left[: len(start)]
            word = self.left[0] if self.left else ""
            if word[:1] == "~" or ("=" in word and word[0] not in "./-"):
                self.overrides.append(self.left.pop(0))
            elif word.startswith("-") and not plain:
                plain = self.left.pop(0) == "--"
                if not plain:
                    self._take_option(word)
            else:
                break

    def _take_option(self, word: str) -> None:
        name, value = self._named(word)
        known = name in self._flags
        takes = self._flags[name] if known else int(torchrun.OPTIONS[name].takes_value)
        if takes == 0 and value is not None:
            raise WrongUsage(f"{word!r}: {word.partition('=')[0]} takes no value")
        if takes is None and value is None:
            value = self.left.pop(0) if self.left and self.left[0] in _INFO else "all"
        elif takes == 1 and value is None:
            if not self.left:
                raise WrongUsage(f"{word}: expected a value")
            value = self.left.pop(0)
        if not known:
            self.options[name] = value or ""
        elif takes is None:
            self.found.append(f"{name}={value}")
        else:
            self.found += [name] if value is None else [name, value]

    def _named(self, word: str) -> tuple[str, str | None]:
        """Return the flag or torchrun's option that a word names, and the value that it holds.

        A long one may be cut, as argparse allows it.
        """
        name, equals, text = word.partition("=")
        value = text if equals else None
        if name.startswith("--"):
            dashed = name.replace("_", "-")
            near = [each for each in self._flags if each.startswith(dashed)]
            near += [each for each in torchrun.OPTIONS if f"--{each}".startswith(dashed)]
            exact = [each for each in near if each.removeprefix("--") == dashed[2:]]
            if len(exact or near) != 1:
                raise _of_flag(name, self._flags, near)
            return (exact or near)[0], value
        form, letter = _FORMS.get(name), name[:2]
        if name in self._flags and not (form and any(map(form.fullmatch, self.left[:1]))):
            return name, value
        if letter in torchrun.SHORT and (name == letter or letter != "-m"):
            # -r3 is -r 3
            return torchrun.SHORT[letter], word[2:].removeprefix("=") or None
        raise _of_flag(name, self._flags, [])


def _of_flag(name: str, flags: Mapping[str, int | None], near: Sequence[str]) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    if near:
        meant = ", ".join(f"--{each.removeprefix('--')}" for each in near)
        return WrongUsage(f"{name} could be {meant}")
    # the dashes are alike in all of them
    long = [*(flag[2:] for flag in flags if flag.startswith("--")), *torchrun.OPTIONS]
    hint = did_you_mean(name.lstrip("-").replace("_", "-"), long)
    hint = hint.replace("'", "'--", 1) or f"see {program()} --help"
    return WrongUsage(f"unknown option {name!r}; {hint}")


def _entrypoint(script: str, options: Mapping[str, str]) -> str:
    """Return what the word after torchrun's options runs; empty if it is nothing of that kind."""
    if "no-python" in options and "run-path" not in options:
        if "module" in options:
            raise WrongUsage("--no-python and --module exclude each other")
        if script.endswith(".py"):
            text = f"--no-python runs a program, and {script} is a Python script: leave it out"
            raise WrongUsage(text)
        return script
    if "module" in options:
        return f"-m {script}"
    is_file = "/" in script and os.path.isfile(script) and not script.endswith((".yaml", ".yml"))
    is_script = script.endswith(".py") and not os.path.isdir(script)
    return script if is_file or is_script or _FUNCTION.fullmatch(script) else ""


def _of_word(word: str, words: Sequence[str], line: _Reader) -> WrongUsage:
    """Return what to write in place of the first word that is neither option nor override."""
    rest = [*line.overrides, *line.left[1:]]
    experiment = word.lstrip("+").removeprefix("exp/")
    if word.endswith((".yaml", ".yml")):
        text = _of_yaml(word, [*line.found, *rest])
    elif word in VERBS:
        command = _command(word, *(each for each in words if each != word))
        text = f"{word!r} is a command, and comes first: {command}"
    elif os.path.isfile(os.path.join("conf", "exp", f"{experiment}.yaml")):
        command = _command(*line.found, f"+exp={experiment}", *rest)
        text = f"{word!r} is not an override; to run that experiment: {command}"
    elif os.path.isfile(f"{word}.py"):
        text = f"{word!r} is not a script; did you mean '{word}.py'?"
    elif os.path.isdir(word):
        text = f"{word} is a directory; write a script in it, or -m PACKAGE"
    elif os.path.isfile(word):
        text = f"{word!r} does not end in .py; to run it as a program: --no-python ./{word}"
    elif word in words[:1] and re.fullmatch(r"[A-Za-z][\w-]*", word):
        text = _of_command(word, words[1:])
    else:
        text = f"{word!r}: expected a script (a path ending in .py) or an override (KEY=VALUE)"
    return WrongUsage(text)


def _of_command(word: str, rest: Sequence[str]) -> str:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    text = f"unknown command {word!r} (choose from {', '.join(VERBS)})"
    ours = [each for each, others in _ELSEWHERE.items() if word.lower() in others.split()]
    if word in _RUNNERS:
        hint = f"to run it: {_command(*(rest or ['+exp=NAME']))}"
    else:
        hint = f"did you mean '{program()} {ours[0]}'?" if ours else did_you_mean(word, VERBS)
    return f"{text}; {hint}" if hint else text


def _of_own_app(word: str) -> WrongUsage:
    script = _shown(sys.argv[0])
    if word not in VERBS:
        return WrongUsage(f"{word!r}: expected an override (KEY=VALUE), got no '='")
    composes = word in {"plan", "check"}
    command = shlex.join(["python", script, "--cfg", "job"] if composes else ["lllaunch", word])
    text = f"{word!r} is a command of lllaunch, and {script} is an app of its own"
    return WrongUsage(f"{text}; did you mean '{command}'?")


def _of_yaml(word: str, rest: Sequence[str]) -> str:
    if not os.path.isfile(word):
        return f"{word}: no such file"
    directory, name = os.path.split(os.path.normpath(word))
    if name == "plan.yaml":
        return f"{word}: to run that plan again: {_command('rerun', directory or '.')}"
    stem, group = name.rpartition(".")[0], os.path.relpath(directory or ".", "conf")
    choice = [f"+{group}={stem}"]
    if group == ".":
        choice = ["--config-name", stem]
    elif group.startswith(os.pardir):
        choice = ["--config-dir", directory or ".", "--config-name", stem]
    return f"{word}: to run it: {_command(*choice, *rest)}"


def _command(*words: str) -> str:
    return f"{program()} {shlex.join(words)}".rstrip()


def _shown(path: str) -> str:
    return relative_path(path, working_directory())
