"""How ranks, times, paths and fates read in a sentence. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lllaunch.run.causes import Raised, signal_name
from lllaunch.run.fates import Ended, Failed, Lost, Succeeded, Victim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lllaunch.run.causes import Cause
    from lllaunch.run.fates import Fate

_LOST = {
    "spawner": "ended with the spawner",
    "kernel": "hangs in the kernel, SIGKILL does not end it",
    "error": "was ended when lllaunch failed",
}
_LONGEST_MESSAGE = 120


def ranks(numbers: Iterable[int]) -> str:
    """Returns ``rank 3`` or ``ranks 0-2, 5``."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def counted(number: int, noun: str) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Returns a time span as people say it: ``30 ms``, ``0.3 s``, ``42 s``, ``3 min 20 s``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def shown_path(path: str, cwd: str) -> str:
    """Returns a path as the user would type it: relative where it lies below ``cwd``.

    A path that holds what a terminal cannot show in one line comes quoted.
    """
    below = path == cwd or path.startswith(cwd.rstrip("/") + "/")
    shown = os.path.relpath(path, cwd) if below else path
    return shown if shown.isprintable() else repr(shown)


def first_line(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """Returns the first line of a text, shortened."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def cause_text(cause: Cause) -> str:
    """Returns a cause as the predicate of a sentence about its worker, in one line."""
    return first_line(str(cause))


def fate_text(fate: Fate, *, after_root: bool) -> str:
    """Returns what became of a worker as the predicate of a sentence.

    Args:
        fate: what became of it.
        after_root: whether its attempt has a root cause that this worker is not.
    """
    later = " after the root cause" if after_root else ""
    if isinstance(fate, Succeeded):
        return "succeeded"
    if isinstance(fate, Failed):
        return cause_text(fate.cause)
    if isinstance(fate, Victim):
        after = duration(fate.after_ns / 1e9)
        return victim_text(fate.cause, after)
    if isinstance(fate, Ended):
        return f"{_ended(fate)}{later}"
    if isinstance(fate, Lost):
        return _LOST[fate.why]
    return "was not started"


def victim_text(cause: Cause, after: str) -> str:
    """Returns how a victim failed as the predicate of a sentence.

    Args:
        cause: how.
        after: how long after the root cause, as text.
    """
    text = cause_text(cause)
    if isinstance(cause, Raised):
        text = text.removeprefix("raised ")
    return f"failed {after} after the root cause: {text}"


def _ended(fate: Ended) -> str:
    names = " then ".join(dict.fromkeys(signal_name(signum) for signum in fate.sent))
    text = f"ended by the launcher ({names or signal_name(fate.signum)})"
    if fate.exitcode == 0:
        return f"{text}, cleanly"
    return f"{text}, status {fate.exitcode}" if fate.exitcode > 0 else text


def fate_key(fate: Fate) -> tuple[object, ...]:
    """Returns what two fates have in common that are told in one line.

    Messages that differ in numbers only (ports, addresses, ranks) count as the same.
    """
    if isinstance(fate, (Victim, Failed)):
        cause = fate.cause
        if isinstance(cause, Raised):
            letters = "".join(each for each in cause_text(cause) if not each.isdigit())
            return type(fate), Raised, letters
        return type(fate), cause_text(cause)
    if isinstance(fate, Ended):
        return Ended, _ended(fate)
    return type(fate), fate_text(fate, after_root=False)
