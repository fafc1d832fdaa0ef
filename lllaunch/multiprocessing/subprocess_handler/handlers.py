"""Making a `SubprocessHandler`."""

from __future__ import annotations

from typing import Any

from lllaunch.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["get_subprocess_handler"]


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: dict[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: Any = None,
) -> SubprocessHandler:
    """Start a program and return its handle; arguments as for `SubprocessHandler`."""
    return SubprocessHandler(
        entrypoint=entrypoint,
        args=args,
        env=env,
        stdout=stdout,
        stderr=stderr,
        local_rank_id=local_rank_id,
        numa_options=numa_options,
    )
