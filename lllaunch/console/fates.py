"""How causes and fates of workers read in a sentence. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lllaunch.console.wording import ranks
from lllaunch.run.causes import Raised, letters, signal_name
from lllaunch.run.fates import Ended, Failed, Lost, Succeeded, Victim
from lllaunch.units import duration

if TYPE_CHECKING:
    from lllaunch.run.causes import Cause
    from lllaunch.run.fates import Fate

_LOST = {
    "spawner": "ended with the process that forks workers",
    "kernel": "hung in the kernel, SIGKILL did not end it",
    "error": "ended when lllaunch failed",
    "unknown": "ended in a way that this version does not know",
}
_LONGEST_MESSAGE = 200
# Where in its own source a C++ library checked, of which the user has no copy: gloo, NCCL, torch.
_CHECKED_AT = re.compile(r"\[(?:enforce fail at )?/?[\w./+-]+\.(?:cc|cpp|cu|h|hpp):\d+\] ?")


def first_line(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """Returns the first line of a text without where a C++ library checked; its beginning if long.

    The end of a message is advice; what happened stands at the beginning.
    """
    line = _CHECKED_AT.sub("", text.strip().partition("\n")[0], count=1)
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."


def cause_text(cause: Cause) -> str:
    """Returns a cause as the predicate of a sentence about its worker, in one line."""
    return first_line(str(cause))


def fate_text(fate: Fate, *, after_root: bool) -> str:
    """Returns what became of a worker, in words that fit one rank and several.

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
        return victim_text(fate.cause, fate.after_ns)
    if isinstance(fate, Ended):
        return _ended(fate) if fate.waited_for else f"{_ended(fate)}{later}"
    if isinstance(fate, Lost):
        return _LOST[fate.why]
    return "not started"


def victim_text(cause: Cause, after_ns: int | None = None) -> str:
    """Returns how a victim failed as the predicate of a sentence.

    Args:
        cause: how.
        after_ns: how long after the root cause, nanoseconds; None where that says nothing.
    """
    text = cause_text(cause)
    if isinstance(cause, Raised):
        text = text.removeprefix("raised ")
    # less than a millisecond is no order of things
    after = f"{duration(after_ns / 1e9)} " if after_ns and after_ns >= 1_000_000 else ""
    return f"failed {after}after the root cause: {text}"


def _ended(fate: Ended) -> str:
    names = " then ".join(dict.fromkeys(signal_name(signum) for signum in fate.sent))
    text = f"ended by the launcher ({names or signal_name(fate.signum)})"
    if fate.waited_for:
        text = f"only waited for {ranks(fate.waited_for)}; {text}"
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
            return type(fate), Raised, letters(cause.message)
        return type(fate), cause_text(cause)
    if isinstance(fate, Ended):
        return Ended, _ended(fate)
    return type(fate), fate_text(fate, after_root=False)
