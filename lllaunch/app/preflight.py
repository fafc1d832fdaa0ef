"""Before Hydra makes a directory: would the run of a command line be refused?

The gate stands where all is decided, and by then Hydra has made the output directory and called
callbacks. Where a project has rules the plan is made once before, as ``plan`` does, so that a run
that is refused leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from lllaunch.app.boundary import AppEnded, refusing
from lllaunch.app.gate import admit, has_rules
from lllaunch.app.planning import locating
from lllaunch.errors import LaunchError


def refused(words: Sequence[str], config_name: str) -> int | None:
    """Says why a run is refused, if it is.

    What else is wrong with it, Hydra and the run itself will say; a sweep tries its jobs before it
    begins.

    Args:
        words: the command line.
        config_name: the primary config where the command line names none.

    Returns:
        The exit code; None if it is not refused.
    """
    if not _has_rules():
        return None
    # most projects have none
    from lllaunch.app.composed import Composition, ConfigRequest  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    try:
        command = ConfigRequest.parse(words)
        command = command._replace(config_name=command.config_name or config_name)
    except ValueError:
        return None  # --help, --cfg and the like, or what is no command line
    try:
        with refusing(), Composition(command) as composed:
            try:
                if composed.is_sweep():
                    return None
                config = composed.compose()
                spec = composed.plan(config)
            except PlanRefused:
                raise  # a package that may not be looked in
            except LaunchError:
                return None
            with locating(composed.loader, config):
                admit(spec, config)
    except AppEnded as end:
        return int(end.code or 0)
    return None


def _has_rules() -> bool:
    try:
        return has_rules()
    except LaunchError:
        return True
