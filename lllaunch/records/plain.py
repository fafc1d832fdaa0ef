"""Entries as plain data, for programs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lllaunch.run.events import isoformat

if TYPE_CHECKING:
    from lllaunch.records.listing import Entry


def plain(entry: Entry, path: str) -> dict[str, Any]:
    """Returns what is known of a run, a sweep or a job, as data for JSON.

    Args:
        entry: what is known.
        path: its directory, as it is to be told.
    """
    found = {
        "kind": entry.kind,
        "path": path,
        "state": entry.state,
        "exit_code": entry.exit_code,
        "started": None if entry.started_ns is None else isoformat(entry.started_ns),
        "seconds": entry.seconds,
        "overrides": list(entry.overrides),
    }
    if entry.kind == "sweep":
        return {**found, "counts": dict(sorted(entry.counts.items()))}
    if entry.kind == "job":
        found["job"] = entry.job
    return {
        **found,
        "attempts": entry.attempts,
        "root_cause": entry.root_cause,
        "return_value": entry.value,
    }
