"""Draws the states of a worker group from its table, as a Mermaid diagram.

``python docs/generate_state_diagram.py`` writes the picture into docs/design; a test compares the
two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from lllaunch.supervisor import machine

DESIGN = Path(__file__).parent / "design"
BEGIN, END = "<!-- generated: states -->", "<!-- end -->"


def of_group() -> Iterator[tuple[str, str, str]]:
    """Yield the changes of state of a worker group: from, to, event."""
    for (state, event, case), (after, _) in machine.TABLE.items():
        yield state.name, after.name, f"{event.__name__}({case})" if case else event.__name__


PAGES = {"supervisor.md": of_group}


def diagram(changes: Iterable[tuple[str, str, str]]) -> str:
    """Return a diagram's text: an arrow for every change of state; the first state is first."""
    changes = list(changes)
    arrows: dict[tuple[str, str], set[str]] = {}
    for state, after, label in changes:
        if after != state:
            arrows.setdefault((state, after), set()).add(label)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {changes[0][0]}"]
    for (state, after), labels in sorted(arrows.items()):
        lines.append(f"    {state} --> {after}: {', '.join(sorted(labels))}")
    last = {after for _, after, _ in changes} - {state for state, _, _ in changes}
    return "\n".join([*lines, *(f"    {state} --> [*]" for state in sorted(last)), "```"])


def page(name: str) -> str:
    """Return a page with its diagram replaced by the present one."""
    before, _, rest = (DESIGN / name).read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{diagram(PAGES[name]())}\n{END}{after}"


if __name__ == "__main__":
    for name in PAGES:
        (DESIGN / name).write_text(page(name))
