"""Keys of ``top``, where nothing runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from textual.widgets import DataTable

from lllaunch.console.table import Column
from lllaunch.results.live import LiveReader, LiveView, Watched
from lllaunch.results.store import ListEntry
from lllaunch.verbs import top_app

if TYPE_CHECKING:
    import pytest


class Reader(LiveReader):
    """Sees the same rows again and again."""

    def view(self, what: Watched) -> LiveView:
        rows = tuple(ListEntry("run", f"/w/{at}", "running", number=at) for at in range(3))
        return LiveView(0, rows, roots=("w",))


def test_a_column_whose_title_ends_in_v_is_sorted_by(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("recv", lambda row: -row.number), Column("rank", lambda row: row.number)]
    monkeypatch.setattr(top_app, "columns_of", lambda view, cwd: columns)

    async def play() -> None:
        app = top_app.TopApp(("w",), Reader(), 60.0)
        async with app.run_test() as pilot:

            def shown() -> tuple[list[str], list[str]]:
                table: DataTable[Any] = app.screen.query_one(DataTable)
                titles = [str(column.label) for column in table.ordered_columns]
                return titles, [str(table.get_row_at(at)[1]) for at in range(table.row_count)]

            while len(app.screen.query(DataTable)) == 0 or not shown()[1]:
                await pilot.pause(0.01)
            await pilot.press("s")
            assert shown() == (["recv^", "rank"], ["2", "1", "0"])
            await pilot.press("r")
            assert shown() == (["recvv", "rank"], ["0", "1", "2"])
            await pilot.press("s")
            assert shown() == (["recv", "rankv"], ["2", "1", "0"])

    asyncio.run(play())
