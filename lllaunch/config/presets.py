"""What ``watchdog: none``, ``report``, ``default`` and ``strict`` stand for.

Data, read by the docs as well.

None of them limits time or memory, which only the user can know. None is called on, off, yes or no,
which YAML takes for booleans.
"""

from __future__ import annotations

from lllaunch.policies import WatchdogPolicy

# Of a run whose config says nothing of it.
DEFAULT = "report"

PRESETS: dict[str, WatchdogPolicy] = {
    "none": WatchdogPolicy(),
    # ends nothing
    "report": WatchdogPolicy(stall=1800.0, report=frozenset({"stall"})),
    "default": WatchdogPolicy(timers=True, stall=1800.0, stall_scope="group", warmup=300.0),
    "strict": WatchdogPolicy(
        timers=True, stall=300.0, stall_scope="rank", warmup=300.0, heartbeat=300.0
    ),
}

PRESET_KEYS = ("launch.watchdog", "hydra.launcher.watchdog")
"""Keys where the name of a preset may stand for a mapping; overrides may change a part of it."""
