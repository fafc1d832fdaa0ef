"""The ladder by which an attempt ends, as a table. Pure.

A polite signal, the grace period, SIGKILL, and once more the grace period as a bound on the wait
for what cannot be killed. A user's signal is the polite one, or follows it; the next one skips what
is left of the grace period.
"""

from __future__ import annotations

from enum import Enum


class Rung(Enum):
    """How far the ending of an attempt has gone."""

    NONE = "nobody asked the workers to end"
    ASKED = "they were asked to end, because of something in the group"
    TOLD = "they were told to end by a user's signal"
    KILLED = "they were killed, and no user's signal came"
    KILLED_TOLD = "they were killed, and a user's signal came"


class Push(Enum):
    """What makes the ending go on."""

    CAUSE = "something in the group: a failure, a change of membership"
    SIGNAL = "a signal to the launcher"
    GRACE_OVER = "the grace period is over"


class Step(Enum):
    """What is done on the way."""

    TERMINATE = "SIGTERM to the workers"
    FORWARD = "the user's signal to the workers"
    GRACE = "the grace period begins, or begins anew"
    KILL = "SIGKILL to the workers and all below them"
    ABANDON = "the wait for them ends"


# From a rung, pushed: the next rung, and the steps that lead there.
LADDER: dict[tuple[Rung, Push], tuple[Rung, tuple[Step, ...]]] = {
    (Rung.NONE, Push.CAUSE): (Rung.ASKED, (Step.TERMINATE, Step.GRACE)),
    (Rung.NONE, Push.SIGNAL): (Rung.TOLD, (Step.FORWARD, Step.GRACE)),
    (Rung.NONE, Push.GRACE_OVER): (Rung.NONE, ()),
    (Rung.ASKED, Push.CAUSE): (Rung.ASKED, ()),
    # The first signal shortens nothing: the grace period goes on.
    (Rung.ASKED, Push.SIGNAL): (Rung.TOLD, (Step.FORWARD,)),
    (Rung.ASKED, Push.GRACE_OVER): (Rung.KILLED, (Step.KILL, Step.GRACE)),
    (Rung.TOLD, Push.CAUSE): (Rung.TOLD, ()),
    (Rung.TOLD, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.KILL, Step.GRACE)),
    (Rung.TOLD, Push.GRACE_OVER): (Rung.KILLED_TOLD, (Step.KILL, Step.GRACE)),
    (Rung.KILLED, Push.CAUSE): (Rung.KILLED, ()),
    (Rung.KILLED, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.FORWARD,)),
    (Rung.KILLED, Push.GRACE_OVER): (Rung.KILLED, (Step.ABANDON,)),
    (Rung.KILLED_TOLD, Push.CAUSE): (Rung.KILLED_TOLD, ()),
    # Again, in case the first SIGKILL met a spawner that could not pass it on.
    (Rung.KILLED_TOLD, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.KILL,)),
    (Rung.KILLED_TOLD, Push.GRACE_OVER): (Rung.KILLED_TOLD, (Step.ABANDON,)),
}
