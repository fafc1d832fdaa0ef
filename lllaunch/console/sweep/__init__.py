"""What the user sees of a sweep: a live table on a terminal, a line per change elsewhere."""

from __future__ import annotations

from lllaunch.console.sweep.console import SweepConsole

__all__ = ["SweepConsole"]
