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

import itertools
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
# Commands that lllaunch has not, and what does the same; {0} is how lllaunch is called.
_ELSEWHERE = {
    **dict.fromkeys(("sweep", "multirun"), "a sweep: {0} -m +exp=NAME KEY=VALUE,VALUE"),
    **dict.fromkeys(("log", "tail"), "'{0} logs' shows what the workers of a run wrote"),
    **dict.fromkeys(("kill", "cancel", "abort"), "'{0} stop' ends a run"),
    "resume": "to run the rest of a sweep: {0} -m hydra.launcher.resume=DIR",
    **dict.fromkeys(("list", "history", "runs"), "'{0} ls' lists runs"),
    **dict.fromkeys(("status", "ps", "jobs"), "'{0} ls' lists runs, and '{0} top' shows live runs"),
    **dict.fromkeys(("htop", "watch", "monitor", "live", "dashboard"), "'{0} top' shows live runs"),
    **dict.fromkeys(("info", "describe", "inspect", "results"), "'{0} show' shows what ran"),
    **dict.fromkeys(("dry-run", "dryrun", "preview"), "'{0} plan' shows what would run"),
    **dict.fromkeys(("validate", "lint"), "'{0} check' checks all configs"),
    **dict.fromkeys(("retry", "restart", "repeat"), "'{0} rerun' runs a plan again"),
    **dict.fromkeys(
        ("stack", "pstack", "dump", "trace", "py-spy"),
        "'{0} stacks' shows where the workers of a run are",
    ),
    **dict.fromkeys(("follow", "attach"), "'{0} logs -f' shows a run's output as it comes"),
    **dict.fromkeys(("config", "cfg"), "'{0} --cfg job' shows what is composed"),
    "version": "'{0} --version' shows it",
    "completion": 'to install it: eval "$({0} -sc install=bash)"',
}


class WrongUsage(Exception):
    """A command line says nothing that could be run; its text says what would."""


class CommandLine(NamedTuple):
    """A command line, taken apart.

    Attributes:
        flags: Hydra's and lllaunch's, with their values.
        overrides: what is left for Hydra.
        has_script: whether some of these stand for a script.
    """

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

    Args:
        words: as the user gave them.
        flags: that there are beside torchrun's options, as `FLAGS` has them.
        own_app: whether the words are for a user's own app, which runs no script.
        environ: where torchrun's options may stand, too.

    Raises:
        WrongUsage: there is something in it that is no option, override or script.
    """
    found: list[str] = []
    options: dict[str, str] = {}
    overrides: list[str] = []
    left = _take_options(list(words), flags, found, options, overrides)
    if left and own_app:
        raise _of_own_app(left[0])
    try:
        if left:
            options = {**torchrun.from_environment(environ), **options}
            overrides[:0] = _of_script(
                left, words if flags is FLAGS else (), found, overrides, options
            )
        else:
            overrides[:0] = torchrun.overrides(options, alone=False)
    except Unsupported as error:
        raise WrongUsage(str(error)) from None
    if left[1:]:
        overrides.append(f"launch.args=[{','.join(map(quoted, left[1:]))}]")
    return CommandLine(tuple(found), tuple(overrides), bool(left))


def _is_override(word: str) -> bool:
    return word[:1] == "~" or ("=" in word and word[:1] not in {".", "/", "-"})


# Options


def _take_options(
    left: list[str],
    flags: Mapping[str, int | None],
    found: list[str],
    options: dict[str, str],
    overrides: list[str],
) -> list[str]:
    """Sort words up to the script into the last three lists; return the script and what follows."""
    plain = False
    while left:
        left = left[next((len(start) for start in _TORCHRUN if left[: len(start)] == start), 0) :]
        if left[:1] == ["--"]:
            plain = True
            del left[0]
        elif left and _is_override(left[0]):
            overrides.append(left.pop(0))
        elif left and left[0].startswith("-") and not plain:
            _take_option(left.pop(0), left, flags, found, options)
        else:
            break
    return left


def _take_option(
    word: str,
    left: list[str],
    flags: Mapping[str, int | None],
    found: list[str],
    options: dict[str, str],
) -> None:
    """Take an option and the words that belong to it.

    Args:
        word: begins with a dash.
        left: what follows it, of which its values are taken away.
        flags: as `read` has them.
        found: gets it, if it is one of these.
        options: gets it, if it is torchrun's.

    Raises:
        WrongUsage: there is no such option, or it lacks a value or has one too many.
    """
    name, value = _named(word, left[:1], flags)
    takes: int | None = flags[name] if name in flags else int(torchrun.OPTIONS[name].takes_value)
    if takes == 0 and value is not None:
        raise WrongUsage(f"{word!r}: {word.partition('=')[0]} takes no value")
    if takes is None and value is None:
        value = left.pop(0) if left and left[0] in _INFO else "all"
    elif takes == 1 and value is None:
        if not left:
            raise WrongUsage(f"{word}: expected a value")
        value = left.pop(0)
    if name not in flags:
        options[name] = value or ""
    elif takes is None:
        found.append(f"{name}={value}")
    else:
        found += [name] if value is None else [name, value]


def _named(
    word: str, following: Sequence[str], flags: Mapping[str, int | None]
) -> tuple[str, str | None]:
    """Return the flag or torchrun's option that a word names, and the value that it holds.

    A long one may be cut, as argparse allows it.
    """
    name, equals, text = word.partition("=")
    value = text if equals else None
    if not name.startswith("--"):
        return _short(word, name, value, following, flags)
    dashed = name.replace("_", "-")
    near = [each for each in flags if each.startswith(dashed)]
    near += [each for each in torchrun.OPTIONS if f"--{each}".startswith(dashed)]
    exact = [each for each in near if each.removeprefix("--") == dashed[2:]]
    if len(exact or near) != 1:
        raise _of_flag(name, flags, near)
    return (exact or near)[0], value


def _short(
    word: str,
    name: str,
    value: str | None,
    following: Sequence[str],
    flags: Mapping[str, int | None],
) -> tuple[str, str | None]:
    form = _FORMS.get(name)
    if name in flags and not (form and any(map(form.fullmatch, following))):
        return name, value
    letter = name[:2]
    if letter in torchrun.SHORT and (name == letter or letter != "-m"):
        # -r3 is -r 3
        return torchrun.SHORT[letter], word[2:].removeprefix("=") or None
    raise _of_flag(name, flags, [])


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


# Scripts


def _of_script(
    left: Sequence[str],
    words: Sequence[str],
    flags: Sequence[str],
    overrides: Sequence[str],
    options: Mapping[str, str],
) -> list[str]:
    """Return the overrides that stand for a script and torchrun's options.

    Args:
        left: the script and its words.
        words: the whole command line.
        flags: that stand before the script; the next two as well.
        overrides: those.
        options: torchrun's.

    Raises:
        WrongUsage: it is nothing that can be run.
        Unsupported: an option cannot be obeyed.
    """
    script = left[0]
    program_alone = "no-python" in options and "run-path" not in options
    if program_alone and "module" in options:
        raise WrongUsage("--no-python and --module exclude each other")
    if program_alone and script.endswith(".py"):
        raise WrongUsage(
            f"--no-python runs a program, and {script} is a Python script: leave it out"
        )
    if "module" in options:
        script = f"-m {script}"
    elif not program_alone and not _is_runnable(script):
        raise _of_word(script, words, flags, [*overrides, *left[1:]])
    return [f"launch.entrypoint={quoted(script)}", *torchrun.overrides(options, alone=True)]


def _is_runnable(word: str) -> bool:
    if word.endswith((".yaml", ".yml")):
        return False
    if _FUNCTION.fullmatch(word):
        return True
    return os.path.isfile(word) and (word.endswith(".py") or "/" in word)


def _of_word(
    word: str, words: Sequence[str], flags: Sequence[str], rest: Sequence[str]
) -> WrongUsage:
    """Return what to write in place of a word that cannot be run.

    Args:
        word: the first that is neither an option nor an override.
        words: the whole command line; none of a verb.
        flags: before the word.
        rest: what else there is, without options.
    """
    if word.endswith((".yaml", ".yml")):
        return _of_yaml(word, flags, rest)
    experiment = word.lstrip("+").removeprefix("exp/")
    if word in VERBS:
        command = _command(word, *(each for each in words if each != word))
        text = f"{word!r} is a command, and comes first: {command}"
    elif os.path.isfile(os.path.join("conf", "exp", f"{experiment}.yaml")):
        command = _command(*flags, f"+exp={experiment}", *rest)
        text = f"{word!r} is not an override; to run that experiment: {command}"
    elif os.path.isdir(word):
        text = f"{word} is a directory; write a script in it, or -m PACKAGE"
    elif word.endswith(".py"):
        return _no_file(word)
    elif os.path.isfile(word):
        text = f"{word!r} does not end in .py; to run it as a program: --no-python ./{word}"
    elif word in words[:1] and re.fullmatch(r"[A-Za-z][\w-]*", word):
        return _of_command(word, words[1:])
    else:
        text = f"{word!r}: expected a script (a path ending in .py) or an override (KEY=VALUE)"
    return WrongUsage(text)


def _of_command(word: str, rest: Sequence[str]) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    text = f"unknown command {word!r} (choose from {', '.join(VERBS)})"
    if word in _RUNNERS:
        hint = f"to run it: {_command(*(rest or ['+exp=NAME']))}"
    else:
        hint = _ELSEWHERE.get(word.lower(), "").format(program()) or did_you_mean(word, VERBS)
    return WrongUsage(f"{text}; {hint}" if hint else text)


def _of_own_app(word: str) -> WrongUsage:
    script = _shown(sys.argv[0])
    if word in {"plan", "check"}:
        hint = f"to see what {script} composes: {shlex.join(['python', script, '--cfg', 'job'])}"
    elif word in VERBS:
        hint = f"to look at its runs: lllaunch {word}"
    else:
        return WrongUsage(f"{word!r}: expected an override (KEY=VALUE), got no '='")
    return WrongUsage(
        f"{word!r} is a command of lllaunch, and {script} is an app of its own; {hint}"
    )


# YAMLs


def _of_yaml(word: str, flags: Sequence[str], rest: Sequence[str]) -> WrongUsage:
    if not os.path.isfile(word):
        return _no_file(word)
    directory, name = os.path.split(os.path.normpath(word))
    if name == "plan.yaml":
        return WrongUsage(f"{word}: to run that plan again: {_command('rerun', directory or '.')}")
    command = _command(*flags, *_choice(directory, name.rpartition(".")[0], flags), *rest)
    return WrongUsage(f"{word}: to run it: {command}")


def _choice(directory: str, name: str, flags: Sequence[str]) -> list[str]:
    """Return the words that choose a config file."""
    following = dict(itertools.pairwise(flags))
    for root in (following.get("--config-dir"), following.get("-cd"), "conf"):
        group = os.path.relpath(directory or ".", root) if root else os.pardir
        if group == ".":
            return ["--config-name", name]
        if not group.startswith(os.pardir):
            return [f"+{group}={name}"]
    top, group = os.path.split(directory)
    if group == "exp":
        return ["--config-dir", top or ".", f"+exp={name}"]
    return ["--config-dir", directory or ".", "--config-name", name]


# Words


def _no_file(path: str) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    directory, name = os.path.split(path)
    try:
        names = os.listdir(directory or ".")
    except OSError:
        names = []
    end = os.path.splitext(name)[1]
    hint = did_you_mean(name, [each for each in names if each.endswith(end)])
    if hint and directory:
        hint = hint.replace("'", f"'{directory}/", 1)
    return WrongUsage(f"{path}: no such file" + (f"; {hint}" if hint else ""))


def _command(*words: str) -> str:
    return f"{program()} {shlex.join(words)}".rstrip()


def _shown(path: str) -> str:
    return relative_path(path, working_directory())
