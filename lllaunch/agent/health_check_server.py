"""The interface of a health check: whether the agent lives. Names are torch's.

As in torch, the server here answers nobody: sites put their own in its place, by passing one to the
agent or by replacing `create_healthcheck_server`, here or, where torch's agent is loaded, there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

__all__ = ["HealthCheckServer", "create_healthcheck_server"]

logger = logging.getLogger(__name__)


class HealthCheckServer:
    """Tells a site's monitoring when the agent was last alive.

    ``alive_callback``: seconds since the epoch at which the agent was last seen alive. ``timeout``:
    seconds after which an agent that was not seen counts as dead.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout

    @property
    def alive_callback(self) -> Callable[[], int]:
        """Tells when the agent was last seen alive."""
        return self._alive_callback

    def start(self) -> None:
        """Begin to answer; this base class only says that it does not."""
        logger.info("no health check server is provided: port %d stays closed", self._port)

    def stop(self) -> None:
        """Answer no more."""
        logger.info("health check ends")


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """The server that an agent uses when TORCHELASTIC_HEALTH_CHECK_PORT is set."""
    torchs = sys.modules.get("torch.distributed.elastic.agent.server.health_check_server")
    if torchs is not None:
        server: HealthCheckServer = torchs.create_healthcheck_server(alive_callback, port, timeout)
        return server
    return HealthCheckServer(alive_callback, port, timeout)
