"""The words of a command line, before Hydra reads them: there are three forms.

1. A command and its arguments, if the first word is one of `VERBS`.
2. A script: options and overrides in any order, then the script, then its own words, which nobody
   else reads. The script is the first word that is neither an option (with its value) nor an
   override. An override holds ``=`` or begins with ``~``, and does not begin with ``.`` or ``/``.
   The word ``torchrun`` before its options says nothing.
3. Hydra's: options and overrides alone.

Options are torchrun's (`OPTIONS`), Hydra's and lllaunch's own. Two letters belong to
both: ``-m`` is torchrun's ``--module`` if the name of a module follows, else Hydra's
``--multirun``; ``-r`` is torchrun's ``--redirects`` if a mask follows, else Hydra's ``--run``.

The second form becomes the third: what it says is said by overrides of ``launch``. Hydra's parser
takes an option between overrides for the end of them, so options are put first.

Nothing here imports Hydra: the spawner's interpreter starts first. Completion in a shell is Hydra's
with its own scripts; commands are added.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.cluster.address import format_endpoint
from lllaunch.files import relative_path, working_directory
from lllaunch.signal_source import ENDING, remember_interrupts

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner

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
    **dict.fromkeys(("--config-dir", "-cd"), 1),
    **dict.fromkeys(("--info", "-i"), None),
    **dict.fromkeys(("--quiet", "-q"), 0),
}
"""Hydra's flags and lllaunch's, and how many words follow each; None for one or none."""

OWN_FLAGS = ("--quiet", "-q")
"""lllaunch's own, which Hydra does not see."""

# Hydra's that show something and run nothing.
_ASKING = {
    *("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version"),
    *("--shell-completion", "-sc"),
}
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# What follows the letters that torchrun and Hydra both have, if torchrun's are meant.
_FORMS = {
    "-m": re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"),
    "-r": re.compile(r"[\d:,]+"),
}
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")


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
"""Torchrun's options, of torch 2.13 (``get_args_parser`` in torch/distributed/run.py).

Each may be spelt with dashes or underscores, and stand in the environment as PET_NAME.
"""

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
    script, spec = sys.argv[0], getattr(sys.modules["__main__"], "__spec__", None)
    if not script.endswith(".py"):
        name = os.path.basename(script)
        return name if name[:1].isalpha() else "lllaunch"
    if spec is not None:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return shlex.join(["python", relative_path(script, working_directory())])


def read(
    words: Sequence[str],
    flags: Mapping[str, int | None] = FLAGS,
    *,
    own_app: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> CommandLine:
    """Take a command line apart, whose first word is no command.

    ``own_app``: the words are for a user's own app, which runs no script. Torchrun's options may
    stand in ``environ``, too. What is no option, override or script is a `WrongUsage`.
    """
    line = _Reader(words, flags)
    script, *arguments = line.left or [""]
    if not line.left:
        overrides = torchrun_overrides(line.options, alone=False)
    elif own_app:
        hint = f"; did you mean 'lllaunch {script}'?" if script in VERBS else ""
        raise WrongUsage(f"{script!r}: expected an override (KEY=VALUE), got no '='{hint}")
    else:
        options = {**_from_environment(environ), **line.options}
        entrypoint = _entrypoint(script, options)
        if not entrypoint:
            raise WrongUsage(_of_word(script, words if flags is FLAGS else (), line))
        overrides = [f"launch.entrypoint={quoted(entrypoint)}"]
        overrides += torchrun_overrides(options, alone=True)
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
            if self.left[0] == "torchrun":
                del self.left[0]
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
        takes = self._flags[name] if known else int(OPTIONS[name].takes_value)
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
            near += [each for each in OPTIONS if f"--{each}".startswith(dashed)]
            exact = [each for each in near if each.removeprefix("--") == dashed[2:]]
            if len(exact or near) != 1:
                raise _of_flag(name, self._flags, near)
            return (exact or near)[0], value
        form, letter = _FORMS.get(name), name[:2]
        if name in self._flags and not (form and any(map(form.fullmatch, self.left[:1]))):
            return name, value
        if letter in SHORT and (name == letter or letter != "-m"):
            # -r3 is -r 3
            return SHORT[letter], word[2:].removeprefix("=") or None
        raise _of_flag(name, self._flags, [])


def _of_flag(name: str, flags: Mapping[str, int | None], near: Sequence[str]) -> WrongUsage:
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    if near:
        meant = ", ".join(f"--{each.removeprefix('--')}" for each in near)
        return WrongUsage(f"{name} could be {meant}")
    # the dashes are alike in all of them
    long = [*(flag[2:] for flag in flags if flag.startswith("--")), *OPTIONS]
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


def _of_word(word: str, words: Sequence[str], line: _Reader) -> str:
    """Return what to write in place of the first word that is neither option nor override."""
    from lllaunch.config.fields import did_you_mean  # noqa: PLC0415 - only if something is wrong

    experiment = word.lstrip("+").removeprefix("conf/").removeprefix("exp/").removesuffix(".yaml")
    if word in VERBS:
        return f"{word!r} is a command, and comes first: {program()} {word} ..."
    if word.endswith(".yaml") and not os.path.isfile(word):
        return f"{word}: no such file"
    if os.path.isfile(os.path.join("conf", "exp", f"{experiment}.yaml")):
        given = [*line.found, f"+exp={experiment}", *line.overrides, *line.left[1:]]
        command = f"{program()} {shlex.join(given)}"
        return f"{word!r} is not an override; to run that experiment: {command}"
    if word in words[:1] and re.fullmatch(r"[A-Za-z][\w-]*", word) and not os.path.exists(word):
        text = f"unknown command {word!r} (choose from {', '.join(VERBS)})"
        hint = did_you_mean(word, VERBS)
        return f"{text}; {hint}" if hint else text
    return f"{word!r}: expected a script (a path ending in .py) or an override (KEY=VALUE)"


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's options that variables give."""
    found = {}
    for name, option in OPTIONS.items():
        variable = f"PET_{name.replace('-', '_').upper()}"
        value = environ.get(variable) or environ.get(_VARIABLES.get(name, ""))
        off = not option.takes_value and value == "0"
        if value and not off and name not in _ONLY_SAID:
            found[name] = value
    return found


def torchrun_overrides(given: Mapping[str, str], *, alone: bool) -> list[str]:
    """Return the overrides that say what options say.

    ``given`` has values by name; any text for a flag. ``alone``: they and a script are the run, and
    torchrun's defaults hold: of several nodes, and of streams if one of ``--redirects`` and
    ``--tee`` is given. Otherwise they change what an experiment says. One that cannot be obeyed is
    a `WrongUsage`.
    """
    options = dict(given)
    one_node = alone and options.get("nnodes", "1") in _ONE_NODE
    if "standalone" in options and options.get("nnodes", "1") not in _ONE_NODE:
        raise WrongUsage(f"--standalone is for one node, and --nnodes is {options['nnodes']}")
    if one_node:
        dropped = (*_OF_SEVERAL, *(["rdzv-id"] if "standalone" in options else []))
        options = {name: value for name, value in options.items() if name not in dropped}
    for name, value in options.items():
        if name in _REFUSED and (name, value) != ("event-log-handler", "null"):
            raise WrongUsage(f"--{name}: {OPTIONS[name].note}")
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


def quoted(word: str, *, numbers: bool = True) -> str:
    """Return a word as Hydra's grammar takes it: it comes out as that text, or as a number."""
    try:
        number = float(word)
        plain = numbers and word in {repr(number), str(int(number)) if number.is_integer() else ""}
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


def only_asks(argv: Sequence[str]) -> bool:
    """Return whether a command line of Hydra's asks for information instead of a run."""
    return any(argument.partition("=")[0] in _ASKING for argument in argv)


@contextlib.contextmanager
def prestarted(argv: Sequence[str]) -> Iterator[Spawner | None]:
    """Have a spawner in the block whose interpreter is starting; None if ``argv`` asks for no run.

    None, too, without room for another process; what is in the way is reported when the run needs
    it.
    """
    remember_interrupts()
    spawner = None
    if not only_asks(argv):
        from lllaunch.spawner.client import Spawner  # noqa: PLC0415 - not needed by --cfg and such

        with contextlib.suppress(OSError):
            spawner = Spawner.prestart()
    try:
        yield spawner
    finally:
        if spawner is not None:
            # a further signal would only break off what ends it
            main = threading.current_thread() is threading.main_thread()
            former = {each: signal.signal(each, signal.SIG_IGN) for each in ENDING if main}
            spawner.close()
            for each, handler in former.items():
                signal.signal(each, handler or signal.SIG_DFL)


_HELP_FORMS = """\

A script runs as under torchrun: its options have their names here, spelt with dashes or
underscores, or PET_NAME in the environment. Everything after the script belongs to the script.
Overrides and Hydra's options may precede it. -m MODULE runs a module, and any other -m is
Hydra's --multirun: a sweep. Without --redirects and --tee the output of all workers goes to
files, and that of rank 0 to the console as well. `{0} plan ... SCRIPT ...` prints the YAML that
runs the same.
"""
_HELP_REST = """\

other options:
  -q, --quiet              print nothing while all goes well
  --version                print the versions of lllaunch, torch, Hydra and Python
  --cfg job                print the composed config, and run nothing
  --config-name, --config-dir, --info, ...: Hydra's; see {0} --hydra-help
  -sc install=SHELL        print completion for SHELL (bash, zsh or fish):
                             bash, zsh: eval "$(lllaunch -sc install=bash)"
                             fish:      lllaunch -sc install=fish | source

settings (launch.KEY=VALUE, or KEY below launch in a YAML; see docs/reference/config.md):
{1}
"""


def help_text() -> str:
    """Return what ``--help`` prints below the usage: commands, options and settings."""
    import textwrap  # noqa: PLC0415 - of --help only

    from lllaunch.spec import KEYS  # noqa: PLC0415 - the same

    options = {
        f"--{name}{' X' if each.takes_value else ''}": "; ".join(filter(None, each[:2]))
        for name, each in OPTIONS.items()
    }
    keys = textwrap.fill(", ".join(KEYS), 100, initial_indent="  ", subsequent_indent="  ")
    lines = [
        f"\ncommands ({program()} COMMAND --help prints more):",
        *(f"  {name:<6}  {text}" for name, text in VERBS.items()),
        _HELP_FORMS.format(program()),
        "options of torchrun, and the setting that each sets:",
        *(f"  {name:<28}  {text}" for name, text in options.items()),
        _HELP_REST.format(program(), keys),
    ]
    return "\n".join(lines)


def choices(line: str, run: Callable[[list[str]], int]) -> list[str]:
    """Return what the last word of a line may become: a command, and what Hydra would complete.

    ``run`` is Hydra's app, called with a command line of its own.
    """
    # without the program
    *words, last = line.split(" ")[1:] or [""]
    words = [word for word in words if word]
    found = [] if words else [*VERBS]
    if words[:1] in (["plan"], ["init"]):
        del words[0]
    elif words and words[0] in VERBS:
        return []
    with contextlib.suppress(WrongUsage):
        read_line = read(words)
        if not read_line.has_script:
            os.environ["COMP_LINE"] = " ".join(["lllaunch", *read_line.words, last])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.suppress(Exception, SystemExit):
                run(["-sc", "query=bash"])
            # no experiment is chosen yet that could be overridden
            found += ["+exp=" if each == "exp=" else each for each in printed.getvalue().split()]
    return sorted({choice for choice in found if choice.startswith(last)})
