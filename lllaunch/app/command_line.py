"""The words of a command line, before Hydra reads them.

Hydra's parser takes a flag between overrides for the end of them, and answers what is no override
with its grammar. So flags are put first here, and who gives a script, a YAML or a flag of torchrun
is answered with the command that runs it. Nothing is run that was not asked for in so many words.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lllaunch.run.files import relative_path, working_directory

# What lllaunch calls itself, in a batch job.
HIDDEN_VERBS = ("job",)
VERBS = ("check", "logs", "ls", "plan", "report", "rerun", "show", "stacks", "stop", "top", "wait")
"""What a command line may begin with, beside what is to be run. No override is a word alone."""

FLAGS: dict[str, int | None] = {
    **dict.fromkeys(("--help", "-h", "--hydra-help", "--version"), 0),
    **dict.fromkeys(("--cfg", "-c", "--package", "-p"), 1),
    **dict.fromkeys(("--resolve", "--run", "-r", "--multirun", "-m"), 0),
    **dict.fromkeys(("--shell-completion", "-sc"), 0),
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn"), 1),
    **dict.fromkeys(("--config-dir", "-cd", "--experimental-rerun"), 1),
    **dict.fromkeys(("--info", "-i"), None),
}
"""Hydra's flags, and how many words follow each; None for one or none."""

OWN_FLAGS = ("--quiet", "-q")
"""lllaunch's own, which Hydra does not see."""

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")

# Torchrun's options: the setting of launch that is meant, and how many words follow.
_TORCHRUN: dict[str, tuple[str, int]] = {
    "nproc-per-node": ("nproc", 1),
    "max-restarts": ("max_restarts", 1),
    "role": ("role", 1),
    "redirects": ("redirects", 1),
    "tee": ("tee", 1),
    "log-dir": ("log_dir", 1),
    "local-ranks-filter": ("local_ranks_filter", 1),
    "log-line-prefix-template": ("log_line_prefix", 1),
    "shutdown-timeout": ("grace_period", 1),
    "nnodes": ("nnodes", 1),
    "node-rank": ("node_rank", 1),
    "rdzv-backend": ("rdzv.backend", 1),
    "rdzv-endpoint": ("rdzv.endpoint", 1),
    "rdzv-id": ("rdzv.id", 1),
    "rdzv-conf": ("rdzv.conf", 1),
    "start-method": ("start_method", 1),
    "virtual-local-rank": ("virtual_local_rank", 0),
    # always, never needed, or another thing here (`_endpoint`)
    "standalone": ("", 0),
    "no-python": ("", 0),
    "monitor-interval": ("", 1),
    "master-addr": ("", 1),
    "master-port": ("", 1),
    "local-addr": ("", 1),
}
_ONE_NODE = ("1", "1:1")
# Of a run with one node these say nothing.
_OF_SEVERAL = ("nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-conf")
# Of torchrun's --master-port.
_PORT = "29500"
_TORCHRUN_SHORT = {"-r": "redirects", "-t": "tee"}

# What others put before what is to be run.
_RUNNERS = ("run", "train", "start", "launch", "exec", "python", "python3", "torchrun")
# Commands that lllaunch has not, and what does the same; {0} is how lllaunch is called.
_ELSEWHERE = {
    **dict.fromkeys(("sweep", "multirun"), "a sweep: {0} -m +exp=NAME KEY=VALUE,VALUE"),
    **dict.fromkeys(("log", "tail"), "'{0} logs' shows what the workers of a run have written"),
    **dict.fromkeys(("kill", "cancel", "abort"), "'{0} stop' ends a run"),
    "resume": "to run the rest of a sweep: {0} -m hydra.launcher.resume=DIR",
    **dict.fromkeys(("list", "history", "runs"), "'{0} ls' lists what was run"),
    **dict.fromkeys(
        ("status", "ps", "jobs"), "'{0} ls' lists what was run, and '{0} top' shows what goes on"
    ),
    **dict.fromkeys(
        ("htop", "watch", "monitor", "live", "dashboard"), "'{0} top' shows what goes on"
    ),
    **dict.fromkeys(("info", "describe", "inspect", "results"), "'{0} show' shows what ran"),
    **dict.fromkeys(("dry-run", "dryrun", "preview"), "'{0} plan' shows what would run"),
    **dict.fromkeys(("validate", "lint"), "'{0} check' checks all configs"),
    **dict.fromkeys(("retry", "restart", "repeat"), "'{0} rerun' runs a plan again"),
    **dict.fromkeys(
        ("stack", "pstack", "dump", "trace", "py-spy"),
        "'{0} stacks' shows where the workers of a run stand",
    ),
    **dict.fromkeys(("follow", "attach"), "'{0} logs -f' shows a run's output as it comes"),
    **dict.fromkeys(("config", "cfg"), "'{0} --cfg job' shows what is composed"),
    "version": "'{0} --version' shows it",
    "completion": 'to install it: eval "$({0} -sc install=bash)"',
}


class WrongUsage(Exception):
    """A command line says nothing that could be run; its text says what would."""


class _Words(NamedTuple):
    """A command line, taken apart.

    Attributes:
        flags: Hydra's, with their values.
        own: lllaunch's.
        others: in their order: overrides, and what is none.
        unknown: what begins with a dash and is no flag.
    """

    flags: tuple[str, ...]
    own: tuple[str, ...]
    others: tuple[str, ...]
    unknown: tuple[str, ...]


def program() -> str:
    """Return how this process was called, such as ``lllaunch`` or ``python train.py``."""
    script = sys.argv[0]
    if os.path.basename(script) == "__main__.py":
        return "python -m lllaunch"
    return shlex.join(["python", _shown(script)]) if script.endswith(".py") else "lllaunch"


def arranged(words: Sequence[str], *, own_app: bool = False) -> list[str]:
    """Return a command line as Hydra's parser takes it: flags first.

    Args:
        words: as the user gave them.
        own_app: whether they are for a user's own app, which runs no entrypoint.

    Raises:
        WrongUsage: there is something in it that is neither a flag nor an override.
    """
    parts = _taken_apart(words)
    if parts.unknown or any(map(_is_no_override, parts.others)):
        _refuse(words, parts, own_app=own_app)
    return [*parts.flags, *parts.others]


def asks_for_quiet(words: Sequence[str]) -> bool:
    """Return whether a command line, as the user gave it, has the flag ``--quiet``."""
    return bool(_taken_apart(words).own)


def _taken_apart(words: Sequence[str]) -> _Words:
    flags: list[str] = []
    own: list[str] = []
    others: list[str] = []
    unknown: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            others += left
            break
        if not word.startswith("-") or word == "-":
            others.append(word)
            continue
        name, equals, _ = word.partition("=")
        known = _flag(name)
        if known is None or (known in OWN_FLAGS and equals):
            unknown.append(word)
        elif known in OWN_FLAGS:
            own.append(word)
        elif equals or FLAGS[known] == 0:
            flags.append(word)
        elif FLAGS[known] == 1:
            flags += [word, *left[:1]]
            del left[:1]
        else:
            # whatever follows would be taken for its value
            flags.append(f"{name}={left.pop(0) if left[:1] and left[0] in _INFO else 'all'}")
    return _Words(tuple(flags), tuple(own), tuple(others), tuple(unknown))


def _flag(name: str) -> str | None:
    """Return the flag that is meant; a long one may be cut, as argparse allows it."""
    names = (*FLAGS, *OWN_FLAGS)
    if name in names:
        return name
    near = [flag for flag in names if flag.startswith(name)] if name.startswith("--") else []
    return near[0] if len(near) == 1 else None


def _is_no_override(word: str) -> bool:
    return "=" not in word and not word.startswith("~")


def _refuse(words: Sequence[str], parts: _Words, *, own_app: bool) -> None:
    """Raise `WrongUsage` with what would be right."""
    wrong = next(filter(_is_no_override, parts.others), "")
    if own_app:
        raise _of_own_app(wrong, parts)
    if words[0] in _RUNNERS:
        raise _of_command(words[0], words[1:])
    if _is_torchruns(parts.unknown):
        raise _of_torchrun(words, parts)
    if wrong.endswith((".yaml", ".yml")):
        raise _of_yaml(wrong, parts)
    if wrong and _is_runnable(wrong):
        raise _of_script(words, wrong)
    if wrong in VERBS:
        command = _command(wrong, *(word for word in words if word != wrong))
        raise WrongUsage(f"{wrong!r} is a command, and comes first: {command}")
    experiment = wrong.lstrip("+").removeprefix("exp/")
    if wrong and os.path.isfile(os.path.join("conf", "exp", f"{experiment}.yaml")):
        rest = [word for word in parts.others if word != wrong]
        command = _command(*parts.own, *parts.flags, f"+exp={experiment}", *rest)
        raise WrongUsage(f"{wrong!r} is not an override; to run that experiment: {command}")
    if wrong and wrong == words[0] and re.fullmatch(r"[A-Za-z][\w-]*", wrong):
        raise _of_command(wrong, words[1:])
    if wrong:
        raise WrongUsage(f"{wrong!r}: expected an override (KEY=VALUE), got no '='")
    raise _of_flag(parts.unknown[0])


def _of_command(word: str, rest: Sequence[str]) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    text = f"unknown command {word!r} (choose from {', '.join(VERBS)})"
    if word not in _RUNNERS:
        hint = _ELSEWHERE.get(word.lower(), "").format(program()) or did_you_mean(word, VERBS)
        return WrongUsage(f"{text}; {hint}" if hint else text)
    try:
        command = _command(*(arranged(rest) or ["+exp=NAME"]))
    except WrongUsage as wrong:
        return wrong
    return WrongUsage(f"{text}; to run it: {command}")


def _of_flag(word: str) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    name = word.partition("=")[0]
    key = _TORCHRUN.get(_torchruns(name) or "", ("", 0))[0]
    if key:
        return WrongUsage(f"{name} is an option of torchrun; here: launch.{key}=...")
    if _flag(name) in OWN_FLAGS:
        return WrongUsage(f"{word!r}: {name} takes no value")
    # the dashes are alike in all of them
    hint = did_you_mean(
        name.lstrip("-"), [flag[2:] for flag in (*FLAGS, *OWN_FLAGS) if flag.startswith("--")]
    )
    hint = hint.replace("'", "'--", 1) or f"see {program()} --hydra-help"
    return WrongUsage(f"unknown option {name!r}; {hint}")


def _of_own_app(wrong: str, parts: _Words) -> WrongUsage:
    script = _shown(sys.argv[0])
    if parts.unknown and wrong not in VERBS:
        return _of_flag(parts.unknown[0])
    if wrong in {"plan", "check"}:
        hint = f"to see what {script} composes: {shlex.join(['python', script, '--cfg', 'job'])}"
    elif wrong in VERBS:
        hint = f"to look at its runs: lllaunch {wrong}"
    else:
        return WrongUsage(f"{wrong!r}: expected an override (KEY=VALUE), got no '='")
    return WrongUsage(
        f"{wrong!r} is a command of lllaunch, and {script} is an app of its own; {hint}"
    )


# Scripts


def _is_runnable(word: str) -> bool:
    return (
        word.endswith(".py")
        or re.fullmatch(r"[\w.]+:[\w.]+", word) is not None
        or ("/" in word and os.path.isfile(word))
    )


def _of_script(words: Sequence[str], script: str) -> WrongUsage:
    at = list(words).index(script)
    before, after = words[:at], words[at + 1 :]
    if other := _other_than_a_script(script, [*(word for word in before if word != "-m"), *after]):
        return other
    text = f"{script} is not an override; to run it: "
    return WrongUsage(text + _command(*before, *_launching(script, after)))


def _other_than_a_script(path: str, words: Sequence[str]) -> WrongUsage | None:
    """Return what to say of a script that is not there, or starts its workers itself."""
    from lllaunch.app.own_app import is_own_app  # noqa: PLC0415 - only if something is wrong

    if not path.endswith(".py"):
        return None
    if not os.path.isfile(path):
        return _no_file(path)
    if is_own_app(path):
        command = shlex.join(["python", path, *words])
        return WrongUsage(f"{path} is an lllaunch.main app; to run it: {command}")
    return None


def _launching(script: str, arguments: Sequence[str]) -> list[str]:
    """Return the overrides that run a script with arguments, and what of these are overrides."""
    ours = [word for word in arguments if re.match(r"\+*(launch|hydra)[./]\S*=", word)]
    theirs = [word for word in arguments if word not in ours]
    args = [f"launch.args=[{','.join(map(_value, theirs))}]"] if theirs else []
    return [f"launch.entrypoint={_value(script)}", *ours, *args]


def _value(word: str) -> str:
    """Return a word as Hydra's grammar takes it, so that it comes out as the same text."""
    try:
        number = float(word)
        plain = word in {repr(number), str(int(number)) if number.is_integer() else ""}
    except (ValueError, OverflowError):
        special = word.lower() in {"true", "false", "null"}
        plain = re.fullmatch(r"[A-Za-z_./-][\w./:-]*", word, re.ASCII) is not None and not special
    if plain:
        return word
    escaped = re.sub(
        r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" + found[2] if found[2] else ""), word
    )
    return '"' + escaped.replace("${", "\\${") + '"'


# Torchrun


def _is_torchruns(unknown: Sequence[str]) -> bool:
    return any(_torchruns(word.partition("=")[0]) is not None for word in unknown)


def _torchruns(name: str) -> str | None:
    """Return the option of torchrun's that a word names, None if there is none."""
    if name in _TORCHRUN_SHORT:
        return _TORCHRUN_SHORT[name]
    option = name[2:].replace("_", "-") if name.startswith("--") else ""
    return option if option in _TORCHRUN else None


def _of_torchrun(words: Sequence[str], parts: _Words) -> WrongUsage:
    """Say how to run what torchrun would: its options, then the script, then the script's own."""
    first = next(word for word in parts.unknown if _torchruns(word.partition("=")[0]))
    text = f"{first.partition('=')[0]} is an option of torchrun"
    left = list(words)
    ours: list[str] = []
    options: dict[str, str] = {}
    module = False
    while left and (left[0].startswith("-") or not _is_no_override(left[0])):
        name, equals, value = left.pop(0).partition("=")
        option = _torchruns(name)
        if name in {"-m", "--module"} and left and _is_no_override(left[0]):
            module = True
        elif option is None:
            ours.append(name + equals + value)
        else:
            if _TORCHRUN[option][1] and not equals:
                value = left.pop(0) if left else ""
            options[option] = value
    ours = [*_settings(options), *ours]
    if not left:
        return WrongUsage(f"{text}; here: {_command(*ours)}")
    script, *after = left
    if other := None if module else _other_than_a_script(script, [*ours, *after]):
        return other
    launching = _launching(f"-m {script}" if module else script, after)
    # the entrypoint first, its arguments last
    return WrongUsage(f"{text}; to run it here: {_command(launching[0], *ours, *launching[1:])}")


def _settings(options: Mapping[str, str]) -> Iterator[str]:
    """Yield the overrides that say what options of torchrun do.

    Args:
        options: values by name; empty for a flag.
    """
    several = options.get("nnodes", "1") not in _ONE_NODE
    for option, value in options.items():
        key, takes = _TORCHRUN[option]
        if key and (several or option not in _OF_SEVERAL):
            yield f"launch.{key}={_value(value) if takes else 'true'}"
    if several and "master-addr" in options and "rdzv-endpoint" not in options:
        address = options["master-addr"]
        host = f"[{address}]" if ":" in address else address
        port = options.get("master-port", _PORT)
        yield f"launch.rdzv.endpoint={_value(f'{host}:{port}')}"


# YAMLs


def _of_yaml(word: str, parts: _Words) -> WrongUsage:
    if not os.path.isfile(word):
        return _no_file(word)
    directory, name = os.path.split(os.path.normpath(word))
    rest = [other for other in parts.others if other != word]
    if name == "plan.yaml":
        return WrongUsage(f"{word}: to run that plan again: {_command('rerun', directory or '.')}")
    command = _command(
        *parts.own, *parts.flags, *_choice(directory, name.rpartition(".")[0], parts.flags), *rest
    )
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
