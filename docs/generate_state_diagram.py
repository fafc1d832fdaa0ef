"""Draws the states of a worker group from the machine's table, as a Mermaid diagram.

``python docs/generate_state_diagram.py`` writes the picture into docs/design/supervisor.md; a test
compares the two.
"""

from __future__ import annotations

from pathlib import Path

from lllaunch.supervisor.machine import TABLE

PAGE = Path(__file__).parent / "design" / "supervisor.md"
BEGIN, END = "<!-- generated: states -->", "<!-- end -->"


def diagram() -> str:
    """Return the diagram's text: an arrow for every change of state."""
    arrows: dict[tuple[str, str], set[str]] = {}
    for (state, event, case), (after, _) in TABLE.items():
        if after is not state:
            label = f"{event.__name__}({case})" if case else event.__name__
            arrows.setdefault((state.name, after.name), set()).add(label)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> INIT"]
    for (state, after), events in sorted(arrows.items()):
        lines.append(f"    {state} --> {after}: {', '.join(sorted(events))}")
    return "\n".join([*lines, "    DONE --> [*]", "```"])


def page(text: str) -> str:
    """Return a page with its diagram replaced by the present one."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
