"""Counters and durations of an agent: names of ``torch.distributed.elastic.metrics``."""

from __future__ import annotations

from lllaunch.agent.metrics.api import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """A place for a program's own set-up of metrics; by default they go nowhere.

    Args:
        cfg: parameters for whoever replaces this.
    """
    configure(NullMetricHandler() if cfg is None else ConsoleMetricHandler(), None)
