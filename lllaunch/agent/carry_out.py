"""What an agent does about decisions on the end of an attempt."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from lllaunch.agent import vocabulary as v
from lllaunch.linux import proc
from lllaunch.spawner.protocol import Exited, StartFailed

if TYPE_CHECKING:
    from lllaunch.agent.clock import Deadlines
    from lllaunch.agent.guard import Guard
    from lllaunch.multiprocessing.api import PContext

logger = logging.getLogger(__name__)

# How long SIGKILL may take to end processes, at least: freeing gigabytes, or what a GPU driver
# holds, takes longer than a short grace period.
_UNKILLABLE_SECONDS = 10.0


def carry_out(
    decision: v.Decision,
    context: PContext | None,
    deadlines: Deadlines,
    guard: Guard,
    grace_period: float,
) -> None:
    """Carry out a decision that starts nothing and ends no run; waits for nothing.

    Args:
        decision: what to do.
        context: the workers of the attempt.
        deadlines: the agent's.
        guard: the agent's.
        grace_period: seconds between the polite signal and SIGKILL.
    """
    if isinstance(decision, v.Pause):
        deadlines.clear()
        deadlines.restart("pause", decision.seconds)
        return
    assert context is not None
    if isinstance(decision, v.SignalWorkers):
        context.signal(decision.signum)
        if any(_is_stopped(pid) for pid in context.known_pids().values()):
            # One that is stopped would take notice of nothing but SIGKILL.
            context.signal(signal.SIGCONT)
    elif isinstance(decision, v.StartGrace):
        deadlines.start("grace", grace_period)
    elif isinstance(decision, v.KillWorkers):
        context.kill()
        # The bound on the wait for what cannot be killed; `StartGrace` follows and leaves it.
        deadlines.restart("grace", max(grace_period, _UNKILLABLE_SECONDS))
    elif isinstance(decision, v.TakeStacks):
        guard.take_stacks(decision.ranks, decision.finding)
    elif isinstance(decision, v.SignalProcess):
        guard.signal(decision)
    elif isinstance(decision, v.AbandonWorkers):
        pids = [context.known_pids().get(rank) for rank in sorted(decision.ranks)]
        logger.error("SIGKILL does not end the processes %s; they are abandoned", pids)
    elif isinstance(decision, v.SweepLeftovers):
        context.sweep()
        # They get SIGKILL at once, so this is for what hangs in the kernel.
        deadlines.restart("sweep", max(grace_period, _UNKILLABLE_SECONDS))


def _is_stopped(pid: int) -> bool:
    facts = proc.facts(pid)
    return facts is not None and facts.state == "T"


def plain_fault(fact: Exited | StartFailed) -> v.Fault:
    """In what way a worker failed, as far as its exit status alone tells."""
    return "died" if isinstance(fact, Exited) and fact.exitcode < 0 else "failure"
