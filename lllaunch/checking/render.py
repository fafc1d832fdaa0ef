"""What a check found, for people and for programs. Pure."""

from __future__ import annotations

import json
import os
from typing import Any

from lllaunch.checking.findings import Found
from lllaunch.checking.outcome import Outcome
from lllaunch.reports.fields import tidy

VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""

_NAMED = 4  # experiments in a line


def render_text(outcome: Outcome) -> str:
    """Returns what was found as compilers tell it, and the verdict.

    Args:
        outcome: of the check.
    """
    lines = [_line(each, outcome) for each in outcome.found]
    return "".join(f"{line}\n" for line in [*lines, outcome.verdict()])


def _line(found: Found, outcome: Outcome) -> str:
    warning = "" if found.code else "warning: "
    first, *more = tidy(found.said).splitlines() or [""]
    hits = hit_text(found, outcome)
    place = " ".join(tidy(found.place).split("\n"))
    end = f" ({hits})" if hits and not more else ""
    return "\n".join([f"{place}: {warning}{first}{end}", *(f"    {line}" for line in more)])


def hit_text(found: Found, outcome: Outcome) -> str:
    """Returns which experiments something hits; nothing if its file is that of the only one.

    Args:
        found: what it is.
        outcome: of the check that found it.
    """
    names = found.experiments
    own = {each.name for each in outcome.experiments if each.file == found.file}
    if not names or (len(names) == 1 and names[0] in own):
        return ""
    shown = ", ".join(map(tidy, names[:_NAMED]))
    more = len(names) - _NAMED
    return f"in {shown} and {more} more" if more > 0 else f"in {shown}"


def render_json(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns what was found as JSON.

    Args:
        outcome: of the check.
        strict: whether warnings count for the exit code.
    """
    document: dict[str, Any] = {
        "version": VERSION,
        "exit_code": outcome.exit_code(strict=strict),
        "directory": tidy(outcome.directory),
        "verdict": outcome.verdict(),
        "experiments": [
            {
                "name": tidy(each.name),
                "file": tidy(each.file),
                "command": [tidy(word) for word in each.command],
                "plan_hash": each.plan_hash or None,
                "locked": each.locked,
            }
            for each in outcome.experiments
        ],
        "problems": [
            {
                "level": each.level,
                "code": each.code,
                "file": tidy(each.file),
                "line": each.line or None,
                "key": tidy(each.key) or None,
                "message": tidy(each.message),
                "experiments": [tidy(name) for name in each.experiments],
            }
            for each in outcome.found
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + os.linesep
