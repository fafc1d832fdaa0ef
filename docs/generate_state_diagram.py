"""Draws the states of a worker group from the agent's table, as a Mermaid diagram.

``python docs/generate_state_diagram.py`` writes the picture into docs/design/agent.md; a test
compares the two.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from lllaunch.agent import machine as v
from lllaunch.agent.machine import TRANSITIONS, Machine, Rung, WorkerState
from lllaunch.watchdog.findings import Asked, TimedOut
from lllaunch.watchdog.stacks.frames import Blame

PAGE = Path(__file__).parent / "design" / "agent.md"
BEGIN, END = "<!-- generated: states -->", "<!-- end -->"
FIRED = v.WatchdogFired(TimedOut(1.0, "run"), "timeout", whole_run=True)
# Facts that carry something: every variant that can lead elsewhere.
VARIANTS: dict[type, list[v.Fact]] = {
    v.GroupStarted: [v.GroupStarted(frozenset({0}))],
    v.WorkerEnded: [v.WorkerEnded(0, ok=True), v.WorkerEnded(0, ok=False)],
    v.SignalReceived: [v.SignalReceived(15)],
    v.StacksAsked: [v.StacksAsked(Asked(3))],
    v.WatchdogFired: [FIRED],
    v.StacksTaken: [v.StacksTaken((), Blame(), FIRED.finding)],
}


def label(fact: v.Fact) -> str:
    """What an arrow says."""
    if isinstance(fact, v.WorkerEnded):
        return "WorkerEnded(ok)" if fact.ok else "WorkerEnded(failed)"
    return type(fact).__name__


def possible(machine: Machine) -> bool:
    """Whether a group can be like that: while it is being ended there is a reason and a rung."""
    if machine.state is not WorkerState.UNHEALTHY:
        return machine.rung is Rung.NONE
    told = machine.rung in (Rung.TOLD, Rung.KILLED_TOLD)
    ending = machine.reason is not None and machine.rung is not Rung.NONE
    return ending and told == (machine.reason == "signal")


def arrows() -> list[tuple[str, str, str]]:
    """Every change of state: from, to, fact."""
    found = set()
    reasons: list[Any] = [None, "failure", "signal", "membership"]
    for state, alive, restarts, reason, rung, flag in itertools.product(
        TRANSITIONS, ({0}, {0, 1}), (0, 1), reasons, Rung, (False, True)
    ):
        for kind in TRANSITIONS[state]:
            for fact in VARIANTS.get(kind) or [kind()]:
                machine = Machine(restarts, spawner_retries=0)
                machine.state, machine.alive = state, frozenset(alive)
                machine.reason, machine.rung = reason, rung
                # What only some states know of.
                machine.at_barrier, machine.pausing = flag, flag and state is WorkerState.STOPPED
                machine.fired = FIRED if flag and state is WorkerState.HEALTHY else None
                machine.signum = 15 if reason == "signal" else None
                if not possible(machine):
                    continue
                machine.handle(fact)
                if machine.state is not state:
                    found.add((state.value, machine.state.value, label(fact)))
    return sorted(found)


def diagram() -> str:
    """The diagram's text."""
    by_pair: dict[tuple[str, str], list[str]] = {}
    for origin, target, fact in arrows():
        by_pair.setdefault((origin, target), []).append(fact)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> INIT"]
    lines += [f"    {a} --> {b}: {', '.join(facts)}" for (a, b), facts in sorted(by_pair.items())]
    lines += [f"    {state} --> [*]" for state in ("FAILED", "SUCCEEDED", "UNKNOWN")]
    return "\n".join([*lines, "```"])


def page(text: str) -> str:
    """A page with its diagram replaced by the present one."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
