"""How causes and fates of workers read in a sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.console.wording import ranks
from lllaunch.run.causes import Raised, signal_name
from lllaunch.run.fates import Ended, Failed, Lost, Succeeded, Victim
from lllaunch.units import duration

if TYPE_CHECKING:
    from lllaunch.run.causes import Cause
    from lllaunch.run.fates import Fate

_LOST = {
    "spawner": "ended with the spawner",
    "kernel": "hangs in the kernel, SIGKILL does not end it",
    "error": "was ended when lllaunch failed",
}
_LONGEST_MESSAGE = 120


def first_line(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """Returns the first line of a text, shortened where a long path stands: in the middle."""
    line = text.strip().partition("\n")[0]
    if len(line) <= limit:
        return line
    end = limit // 3
    return f"{line[: limit - end - 3]}...{line[-end:]}"


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
        return _ended(fate) if fate.waited_for else f"{_ended(fate)}{later}"
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
            letters = "".join(each for each in cause_text(cause) if not each.isdigit())
            return type(fate), Raised, letters
        return type(fate), cause_text(cause)
    if isinstance(fate, Ended):
        return Ended, _ended(fate)
    return type(fate), fate_text(fate, after_root=False)
