"""Lines of text for people: how ranks, jobs, ends and paths read in a sentence. Pure."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.documents import Fields
from lllaunch.run.files import relative_path
from lllaunch.text import count, first_line, printable, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lllaunch.run.result import Reached
    from lllaunch.watchdog.progress import Progress


class StyledText(NamedTuple):
    """A line, or a part of one.

    Attributes:
        text: what it says, without a newline.
        style: how it looks on a terminal: ``title``, ``error``, ``good``, ``bad``, ``busy``,
            ``cause``, ``quote``, ``faint``, or nothing special.
    """

    text: str
    style: str = ""


_WIDTH = 76
_SIGNALS = 128  # an exit code beyond this is that of a signal
_LONGEST_CAUSE = 300
# Where in its own source a C++ library checked, of which the user has no copy: gloo, NCCL, torch.
_CHECKED_AT = re.compile(r"\[(?:enforce fail at )?/?[\w./+-]+\.(?:cc|cpp|cu|h|hpp):\d+\] ?")


def cause_line(text: str, most: int = 200) -> str:
    """Return the first line of a cause without where a C++ library checked, shortened.

    The end of a message is advice; what happened stands at the beginning.
    """
    return first_line(_CHECKED_AT.sub("", text.strip().partition("\n")[0], count=1), most)


def ranks(numbers: Iterable[int]) -> str:
    """Returns ``rank 3`` or ``ranks 0-2, 5``."""
    return _numbered("rank", numbers)


def named_jobs(numbers: Iterable[int]) -> str:
    """Returns ``job 3`` or ``jobs 0-2, 5``."""
    return _numbered("job", numbers)


def _numbered(noun: str, numbers: Iterable[int]) -> str:
    known = set(numbers)
    return f"{noun if len(known) == 1 else f'{noun}s'} {spans(known)}"


def counted(number: int, noun: str) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def capitalised(text: str) -> str:
    """Returns a text as it stands at the beginning of a sentence; names keep their capitals."""
    return f"{text[:1].upper()}{text[1:]}"


def shown_path(path: str, cwd: str) -> str:
    """Returns a path as the user would type it: relative where it lies below ``cwd``.

    A path that holds what a terminal cannot show in one line comes quoted.
    """
    shown = relative_path(path, cwd)
    return shown if shown.isprintable() else repr(shown)


def wrapped(text: str) -> Iterator[StyledText]:
    """Yields a text as lines of the report, indented and of bounded width; none if it is empty."""
    for part in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
        yield StyledText(f"    {part}")


_MOST_METRICS = 3
# With the words around it that is a line of the report.
_LONGEST_PROGRESS = 64
_LONGEST_METRIC_NAME = 24


def step_text(step: float, total: float | None) -> str:
    """Returns ``step 1200 of 5000 (24 %)``, or ``step 1200`` where nobody knows how many there are.

    Args:
        step: how many are done.
        total: how many there are, or None.
    """
    if not total:
        return f"step {count(step)}"
    # all of it is only what is done: 599 of 600 are 99 %
    return f"step {count(step)} of {count(total)} ({100 * step // total:.0f} %)"


def short_step(step: float, total: float | None) -> str:
    """Returns ``1200/5000``, or ``1200``: the same for a table."""
    return count(step) if not total else f"{count(step)}/{count(total)}"


def progress_text(progress: Progress | Reached) -> str:
    """Returns the step, and some of the numbers beside it: ``step 1200 of 5000 (24 %), loss 0.3``.

    Losses stand before others. Long names are shortened, and what has no room is left out.
    """
    text = step_text(progress.step, progress.total)
    metrics = sorted(progress.metrics.items(), key=lambda pair: "loss" not in pair[0])
    for name, value in metrics[:_MOST_METRICS]:
        longer = f"{text}, {printable(name, _LONGEST_METRIC_NAME)} {count(value)}"
        if len(longer) <= _LONGEST_PROGRESS:
            text = longer
    return text


def ending(exit_code: int | None, why: str) -> str:
    """Returns ``exit code 3: rank 1: ValueError: no`` or ``SIGKILL (exit code 137)``.

    Args:
        exit_code: of a job, or None.
        why: the first failure in one line, or an empty string.
    """
    from lllaunch.documents import signal_name  # noqa: PLC0415 - most jobs succeed

    text = "" if exit_code is None else f"exit code {exit_code}"
    if exit_code is not None and exit_code > _SIGNALS:
        text = f"{signal_name(exit_code - _SIGNALS)} ({text})"
    why = printable(cause_line(why, _LONGEST_CAUSE), _LONGEST_CAUSE)
    return ": ".join(filter(None, (text, why))) or "no result"


def commit_text(facts: Mapping[str, Any]) -> str:
    """Returns the commit, and whether the tree was changed.

    Args:
        facts: as `lllaunch.run.build.build_facts` returns them, or a result.json has them.
    """
    build = Fields(facts)
    commit, branch, problem = map(build.text, ("commit", "branch", "git_problem"))
    if not commit:
        return f"not known: {problem}" if problem else ""
    text = f"{commit}" + (f" ({branch})" if branch else "")
    if build.flag("dirty"):
        counts = [(build.integer(name), name) for name in ("changed", "untracked")]
        told = ", ".join(f"{number} {what}" for number, what in counts if number)
        text += f", with changes ({told})" if told else ", with changes"
    return f"{text}; {problem}" if problem else text


def versions_text(facts: Mapping[str, Any]) -> str:
    """Returns the versions of packages and of Python.

    Args:
        facts: as for `commit_text`.
    """
    build = Fields(facts)
    versions = build.inner("versions")
    packages = (f"{name} {versions.text(name)}" for name in versions.document)
    python = f"{build.text('implementation')} {build.text('python')}".strip()
    return ", ".join(filter(None, (*packages, python)))
