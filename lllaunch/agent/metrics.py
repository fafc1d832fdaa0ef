"""Counters and durations of an agent: names of ``torch.distributed.elastic.metrics``.

A metric has a name, a value and a time, and goes to its group's handler. Where torch's module is
loaded and nothing is configured here, it goes to the handler that is configured there.
"""

from __future__ import annotations

import abc
import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "prof",
    "put_metric",
]

F = TypeVar("F", bound=Callable[..., Any])


class MetricData(NamedTuple):
    """One measurement."""

    timestamp: float  # seconds since the epoch
    group_name: str
    name: str
    value: int


class MetricHandler(abc.ABC):
    """Takes measurements."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one."""


class ConsoleMetricHandler(MetricHandler):
    """Prints measurements on standard output."""

    def emit(self, metric_data: MetricData) -> None:
        """Print one."""
        data = metric_data
        print(f"[{data.timestamp}][{data.group_name}]: {data.name}={data.value}")


class NullMetricHandler(MetricHandler):
    """Drops measurements."""

    def emit(self, metric_data: MetricData) -> None:
        """Drop one."""


class MetricStream:
    """Measurements of one group."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: int) -> None:
        """Hand one measurement to the handler, with the time."""
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


_handlers: dict[str | None, MetricHandler] = {}


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Say where the measurements of a group go; without a group, those of all others."""
    _handlers[group] = handler


def getStream(group: str) -> MetricStream:  # noqa: N802 - torch's public name
    """The stream of a group."""
    handler = _handlers.get(group, _handlers.get(None))
    if handler is None:
        torchs = sys.modules.get("torch.distributed.elastic.metrics.api")
        # none yet, while another thread imports it
        stream_of = getattr(torchs, "getStream", None)
        handler = NullMetricHandler() if stream_of is None else stream_of(group).handler
    return MetricStream(group, handler)


def _name_of(function: Callable[..., Any]) -> str:
    qualname: str = function.__qualname__
    parts = qualname.split(".")
    # A plain function is known by its module as well.
    return qualname if len(parts) > 1 else f"{function.__module__.rpartition('.')[2]}.{qualname}"


@overload
def prof(fn: F) -> F: ...
@overload
def prof(fn: None = None, group: str = ...) -> Callable[[F], F]: ...


def prof(fn: F | None = None, group: str = "torchelastic") -> F | Callable[[F], F]:
    """Decorator that measures a function: calls that succeed or fail, and their duration.

    The metrics are ``<name>.success``, ``<name>.failure`` and ``<name>.duration.ms``.
    """

    def wrap(function: F) -> F:
        name = _name_of(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.monotonic()
            try:
                result = function(*args, **kwargs)
            except Exception:
                put_metric(f"{name}.failure", 1, group)
                raise
            else:
                put_metric(f"{name}.success", 1, group)
                return result
            finally:
                elapsed = int((time.monotonic() - started) * 1000)
                put_metric(f"{name}.duration.ms", elapsed, group)

        return wrapper  # type: ignore[return-value]

    return wrap(fn) if fn is not None else wrap


def put_metric(metric_name: str, metric_value: int, metric_group: str = "torchelastic") -> None:
    """Publish one measurement."""
    getStream(metric_group).add_value(metric_name, metric_value)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Milliseconds since a time of ``time.time()``."""
    return int((time.time() - start_time_in_seconds) * 1000)
