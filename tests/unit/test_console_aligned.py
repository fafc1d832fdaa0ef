"""Lines of a table without titles: as wide as there is room, one for each row."""

from __future__ import annotations

from lllaunch.console.table import aligned, cells

ROWS = [
    ("rank 0", "raised ValueError: " + "word " * 50, "pid 1", "logs/0"),
    ("rank 1", "succeeded", "pid 22", "logs/1"),
]


def test_a_column_gives_way_where_there_is_no_room_for_all() -> None:
    lines = aligned(ROWS, room=80, shrinks=1)

    assert max(map(cells, lines)) == 80
    assert lines[0].startswith("rank 0  raised ValueError: word ")
    assert lines[0].endswith("...  pid 1   logs/0")
    assert lines[1].startswith("rank 1  succeeded   ")
    assert lines[1].endswith("  pid 22  logs/1")


def test_it_stays_as_wide_as_it_can_be_read() -> None:
    lines = aligned(ROWS, room=10, shrinks=1, least=24)

    assert lines[1] == "rank 1  succeeded" + " " * 15 + "  pid 22  logs/1"


def test_all_is_shown_where_there_is_room() -> None:
    assert aligned(ROWS, room=1000, shrinks=1) == aligned(ROWS)
    assert ROWS[0][1].strip() in aligned(ROWS)[0]


def test_a_table_without_rows_has_no_lines() -> None:
    assert aligned([], room=80, shrinks=1) == []
