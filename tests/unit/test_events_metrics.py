"""Events and metrics: torch's public names."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from lllaunch.agent import events, metrics
from lllaunch.agent.events import Event, EventSource


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    handler = Kept()
    monkeypatch.setitem(events._log_handlers, "kept", handler)
    return handler


def test_events_survive_their_text(kept: Kept) -> None:
    event = Event("n", EventSource.WORKER, 5, {"a": 1, "b": None})
    assert Event.deserialize(str(event)) == event
    assert Event.deserialize(event) is event
    events.record(event, "kept")
    events.record(event)
    events.record(event, "no such destination")
    assert kept.lines == [event.serialize()]


HANDLERS_OF_TORCH = "torch.distributed.elastic.events.handlers"


def test_events_go_where_torchs_would(monkeypatch: pytest.MonkeyPatch) -> None:
    event, of_torch, own = Event("n", EventSource.AGENT), Kept(), Kept()
    events.record(event)
    logging.getLogger("lllaunch-events-null").addHandler(own)
    # while another thread imports it
    monkeypatch.setitem(sys.modules, HANDLERS_OF_TORCH, SimpleNamespace())
    events.record(event)
    loaded = SimpleNamespace(_log_handlers={"null": of_torch})
    monkeypatch.setitem(sys.modules, HANDLERS_OF_TORCH, loaded)
    events.record(event)
    events.record(event, "no such destination")
    assert of_torch.lines == [event.serialize()]
    assert own.lines == [event.serialize()] * 2, "what a program has added stays"
    monkeypatch.delitem(sys.modules, HANDLERS_OF_TORCH)
    events.record(event)
    assert of_torch.lines == [event.serialize()]
    logging.getLogger("lllaunch-events-null").removeHandler(own)


class Values(metrics.MetricHandler):
    def __init__(self) -> None:
        self.found: list[tuple[str, str, int]] = []

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.found.append((metric_data.group_name, metric_data.name, metric_data.value))


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Values:
    monkeypatch.setattr(metrics, "_handlers", {})
    handler = Values()
    metrics.configure(handler, "g")
    return handler


def test_metrics_go_to_their_groups_handler(values: Values) -> None:
    metrics.put_metric("a", 1, "g")
    metrics.put_metric("b", 2)
    metrics.getStream("g").add_value("d", 4)
    assert values.found == [("g", "a", 1), ("g", "d", 4)]


def test_prof_measures_calls(values: Values) -> None:
    class Thing:
        @metrics.prof(group="g")
        def work(self, fail: bool) -> int:
            if fail:
                raise ValueError("no")
            return 7

    assert Thing().work(False) == 7
    with pytest.raises(ValueError, match=r"^no$"):
        Thing().work(True)
    names = [name.rpartition("Thing.")[2] for _, name, _ in values.found]
    assert names == ["work.success", "work.duration.ms", "work.failure", "work.duration.ms"]


def test_the_console_handler_prints(values: Values, capsys: pytest.CaptureFixture[str]) -> None:
    metrics.configure(metrics.ConsoleMetricHandler())
    metrics.put_metric("a", 1, "other")
    assert capsys.readouterr().out.endswith("[other]: a=1\n")
    metrics.put_metric("b", 2, "other")
    assert capsys.readouterr().out.endswith("[other]: b=2\n"), "what was configured stays"
    assert metrics.get_elapsed_time_ms(0) > 0
