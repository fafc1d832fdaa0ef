"""The sweeper of grids, as Hydra sees it."""

from __future__ import annotations

from typing import Any

from lllaunch.hydra_compat import BasicSweeper, store_deferred


def _node() -> dict[str, Any]:
    target = "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper"
    return {"_target_": target, "max_batch_size": None, "params": None}


store_deferred("lllaunch", _node, "hydra/sweeper")


class LllaunchSweeper(BasicSweeper):
    """Hydra's basic sweeper, but jobs are composed while others run, and none ends the others.

    With another launcher than lllaunch it is Hydra's basic sweeper.
    """

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all jobs; called by Hydra.

        Raises:
            SystemExit: not all jobs succeeded (exit code 6), or as `LllaunchLauncher.launch` has
                it.
        """
        from hydra_plugins.lllaunch_launcher.launcher import LllaunchLauncher  # noqa: PLC0415
        from lllaunch.app.sweeper import sweep  # noqa: PLC0415 - heavy

        if type(self.launcher).__name__ != LllaunchLauncher.__name__:
            return super().sweep(arguments)
        return sweep(self, arguments)
