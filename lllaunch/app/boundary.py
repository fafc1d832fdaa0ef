"""How a Hydra app of ours ends: its exit code, and its message with nothing before or after it.

Hydra prints a line of its own wherever somebody reads what a failed job returned, and again what
the job raised, with advice on stack traces below it; then it exits with 1. So `Ledger.run` puts
others in the place of what does that (`_BOUNDARY`): the jobs of our apps return a `QuietReturn`,
and what ends an app comes past Hydra to `Ledger.run`, which says it and knows the exit code. Where
the app is a user's own and only its launcher is ours, `refusing` says it.

Hydra reads config files as they are: aliases within aliases fill the memory, and errors of YAML,
the file system and Python's logging end its app with a traceback. What Hydra, OmegaConf and Python
say of a value that does not fit is made where nobody knows that it came from the environment, so
no message quotes what variables hold, if that looks like a secret.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.command_line import quoted
from lllaunch.config.fields import did_you_mean
from lllaunch.config.read import CLUSTER
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError, for_signal
from lllaunch.files import relative_path, working_directory
from lllaunch.hydra_compat import HydraMessage, QuietReturn, Seam, replaced
from lllaunch.linux.cgroup import shortage
from lllaunch.review.paths import PlanRefused
from lllaunch.secret_names import redactor
from lllaunch.signal_source import ENDING
from lllaunch.text import visible


def without_variables(text: str) -> str:
    """Returns a text with ``${oc.env:NAME}`` in place of the secrets that variables hold."""
    return redactor({os.environ[name]: f"${{oc.env:{name}}}" for name in os.environ})(text)


_EXPERIMENTS = "exp"
_MOST_OPTIONS = 20
_GRAMMAR = "https://hydra.cc/docs/advanced/override_grammar/basic"
# What Hydra and OmegaConf say at length, and the same in short; the first that fits.
_IN_SHORT = {
    r"^To append to your default list use \+((.+?)=.+)$": (
        r"\1: no config of group '\2' is chosen yet; to choose one: +\1"
    ),
    r"^Multiple values for (\S+)\. To override .* use '(override \1: .+)'": (
        r"\1: a config of that group is chosen already; to choose another one: '\2' in a defaults "
        r"list, or \1=NAME without + on the command line"
    ),
    r"^Could not override '([^']+)'\.\s+To append to .* use (\+.+)$": (
        r"\1: no such key in the config; to add it: \2"
    ),
    r"An item is already at '([^']+)'\.\s+Either remove \+ prefix: '(.+)'$": (
        r"\1: the config has that key already; to override it: \2"
    ),
    r"Recursive interpolation detected\s+full_key: (\S+)": (
        r"\1: expected a value, got a reference that leads back to \1"
    ),
}


def reason_of(error: BaseException) -> str:
    """Says in short why a config could not be composed, with what caused that."""
    if short := shortage(error):
        return short
    if isinstance(error, RecursionError):
        return "the config is nested too deeply, or refers to itself"
    parts: list[str] = []
    while error is not None and len(parts) < 4:
        text = str(error).strip()
        if text or error.__cause__ is None:
            parts.append(text or type(error).__name__)
        error = error.__cause__  # type: ignore[assignment]
    return os.linesep.join(dict.fromkeys(parts))


def message_of(error: BaseException) -> str:
    """Return the same for who gave the command: what was expected, what came, what to do."""
    reason = reason_of(error)
    if isinstance(error, OverrideParseException):
        expected = f"{error.override!r}: expected an override (KEY=VALUE)"
        if "missing EQUAL" in error.message:
            return f"{expected}, got no '='"
        # between Hydra's own first and last line
        detail = re.sub(r"Error parsing override .*\n|\nSee https:.*", "", error.message).strip()
        key, _, value = error.override.partition("=")
        hint = f"see {_GRAMMAR}"
        if value[:1] not in "\"'[{":
            hint = f"hint: {shlex.quote(f'{key}={quoted(value)}')} takes the value as text"
        return f"{expected}: {detail}; {hint}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(error, error.missing_cfg_file, reason)
    for pattern, short in _IN_SHORT.items():
        if found := re.search(pattern, reason, re.MULTILINE):
            return found.expand(short)
    return reason


def _missing(error: MissingConfigException, name: str, reason: str) -> str:
    """Say which config is not there, who includes it, where it was looked for, and what is."""
    searched = [
        relative_path(path, working_directory())
        for path in re.findall(r"^\tprovider=.*, path=file://(.+)$", reason, re.MULTILINE)
    ]
    group, _, option = name.removesuffix(".yaml").rpartition("/")
    what = "experiment" if group == _EXPERIMENTS else "config"
    options = [each for each in error.options or () if each != option]
    hint = did_you_mean(option, options)
    if not hint and options:
        more = ", ..." if len(options) > _MOST_OPTIONS else ""
        hint = f"there are {', '.join(options[:_MOST_OPTIONS])}{more}"
    places = [os.path.join(path, group).rstrip("/") for path in searched]
    there = [path for path in places if os.path.isdir(path)]
    where = f" in {' or '.join(there)}" if there else f" in group {group!r}" if group else ""
    # the file whose defaults list names it, if that is the user's
    parent = re.match(HydraMessage.INCLUDED_BY, reason)
    paths = [os.path.join(path, f"{parent[1]}.yaml") for path in searched if parent]
    including = next((f"{path}: " for path in paths if os.path.isfile(path)), "")
    text = f"{including}no {what} {option!r}{where}"
    return f"{text}; {hint}" if hint else text


def tell_ci(directory: str) -> None:
    """Annotates and summarises the step of GitHub Actions that this process runs in, if any."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from lllaunch.results.report import announce  # noqa: PLC0415 - in CI only

        announce(directory)


def _say(error: LaunchError | str) -> None:
    """Say why nothing was run, in CI, too: what stands in a file is annotated there."""
    from lllaunch.console.console import Console  # noqa: PLC0415 - most apps end without

    console = Console()
    console.hide(without_variables)
    console.refused(str(error))
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    from lllaunch.results.report import announce_error  # noqa: PLC0415 - in CI only

    found: tuple[Diagnostic, ...] = getattr(error, "problems", ())
    placed = [problem for problem in found if problem.file and "://" not in problem.file]
    lines = [(each.file, each.line, without_variables(each.said)) for each in placed]
    # others say, too, what the problems are of
    all_said = isinstance(error, (ConfigError, PlanRefused)) and len(placed) == len(found)
    rest = "" if all_said and not getattr(error, "changes", ()) else str(error)
    announce_error(without_variables(rest), lines)


# What may come of composing.
_TOLD = (
    *(LaunchError, CompactHydraException, OmegaConfBaseException, yaml.YAMLError),
    *(OSError, ValueError, LookupError, RecursionError),
)
# What argparse exits with when a flag is wrong; ours says with it that the launch config is.
_ARGPARSE_ERROR = 2


class AppEnded(SystemExit):
    """Ends a Hydra app with an exit code of ours; Hydra lets it pass."""


class JobFailed(CompactHydraException):
    """Ends a Hydra job whose run, as has been reported, did not succeed."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code


E = TypeVar("E", JobFailed, LaunchError)


class Ledger:
    """What the jobs of one Hydra app ended with."""

    def __init__(self) -> None:
        self._first: JobFailed | LaunchError | None = None
        before = {signum: signal.getsignal(signum) for signum in ENDING}
        # what is ignored, as under nohup, stays so
        kept = {signal.SIG_IGN, None}
        self._before = {signum: known for signum, known in before.items() if known not in kept}
        self._over = False

    def note(self, ended: E) -> E:
        """Note what a failed job is about to raise; the first one decides the exit code."""
        self._first = self._first or ended
        return ended

    def over(self, code: int) -> None:
        """Let signals, until `restore`, end what is left of the app and not change its exit code.

        The only run of the app has ended with ``code``, which is in result.json.
        """

        def leave(*_: object) -> NoReturn:
            raise AppEnded(code)

        self._over = threading.current_thread() is threading.main_thread()
        for signum in self._before if self._over else ():
            signal.signal(signum, leave)

    def restore(self) -> None:
        """Let signals do what they did before."""
        for signum, handler in self._before.items() if self._over else ():
            signal.signal(signum, handler)

    def run(
        self, app: Callable[[], object], seams: Mapping[Seam, Callable[[Any], Any]] | None = None
    ) -> int | None:
        """Call a Hydra app, with ``seams`` in the place of Hydra's own, and say why it ended.

        Returns what the process shall exit with; None if the app returned. Exceptions that are
        neither ours nor Hydra's pass through; with HYDRA_FULL_ERROR=1 so do Hydra's.
        """
        with replaced({**_BOUNDARY, **(seams or {})}):
            try:
                app()
            except (JobFailed, LaunchError) as ended:
                if isinstance(ended, LaunchError):
                    _say(ended)
                elif ended is not self._first:
                    # a sweeper of Hydra's gives up for a job of lllaunch's launcher, which said so
                    # before all that came since
                    _say(str(ended).removeprefix("lllaunch: "))
                if _wants_full_errors() and isinstance(ended, LaunchError):
                    traceback.print_exception(ended)
                first = self._first or (ended if isinstance(ended, LaunchError) else None)
                return int(ExitCode.ERROR if first is None else first.exit_code)
            except _TOLD as error:
                if _wants_full_errors():
                    raise
                _say(visible(message_of(error)))
                return int(ExitCode.ERROR)
            except KeyboardInterrupt:
                return for_signal(signal.SIGINT)
            except SystemExit as end:
                if end.code is not None and not isinstance(end.code, int):
                    print(end.code, file=sys.stderr)
                    return int(ExitCode.ERROR)
                argparses = end.code == _ARGPARSE_ERROR and not isinstance(end, AppEnded)
                return int(ExitCode.ERROR) if argparses else end.code or 0
            # a sweeper that tolerates failed jobs returns as if there were none
            return int(self._first.exit_code) if self._first else None


def _wants_full_errors() -> bool:
    """Return whether the user asks Hydra for tracebacks."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


# what YAML may read as a number of base 60
_UNQUOTED = re.compile(rb"\b(nnodes|time): *\d+:")


def expect_readable(path: str) -> None:
    """Raise if the aliases of a config file come to more than memory holds, or a value is misread.

    After YAML ``nnodes: 1:4`` is no other than ``nnodes: 64``.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return  # Hydra says why
    if (b"&" not in data or b"*" not in data) and _UNQUOTED.search(data) is None:
        return
    from lllaunch.config.document import parse  # noqa: PLC0415 - of such a file only

    try:
        document = parse(data.decode("utf-8", "replace"), path, as_hydra=True)
    except ConfigError as error:
        raise ConfigCompositionException(visible(str(error))) from None
    of_cluster = os.path.basename(os.path.dirname(path)) == CLUSTER
    for each in document.sexagesimals:
        # a time of the user's own may be anything
        key = str(each.path[-1])
        if key == "nnodes" or (key == "time" and (of_cluster or each.path[0] == CLUSTER)):
            place = (relative_path(path, working_directory()), each.line)
            message = "is a number of base 60 to YAML"
            problem = Diagnostic("base-60", key, each.text, message, "quote it", *place)
            raise ConfigError((problem,))


def _report_quietly(report: Callable[[Callable[[], Any]], Any], func: Callable[[], Any]) -> Any:
    """Do as Hydra's function, but raise why an app ends, and print nothing.

    What is neither ours nor comes of composing it still reports as it does.
    """
    if _wants_full_errors():
        return func()
    ended: list[Exception] = []

    def call() -> Any:
        try:
            return func()
        except _TOLD as error:
            ended.append(error)

    value = report(call)
    if ended:
        raise ended[0]
    return value


_BOUNDARY: Mapping[Seam, Callable[[Any], Any]] = {
    Seam.REPORT: lambda report: functools.partial(_report_quietly, report),
    Seam.RETURN: lambda _: QuietReturn,
}


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Says what is wrong and ends the app with its exit code when the block raises a `LaunchError`.

    Hydra would end every app with 1 and its own advice; it lets `AppEnded`, a SystemExit, pass.
    """
    try:
        yield
    except LaunchError as error:
        _say(error)
        raise AppEnded(int(error.exit_code)) from error
