"""``top`` with keys: an app of textual's, which shows what `lllaunch.results.live` reads.

It is imported only where somebody has textual and a terminal. Files are read in a thread, so that
keys are obeyed meanwhile. Logs, stacks and a stop are those verbs themselves, in the same terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import ClassVar, Literal

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, HelpPanel, Input, Static

from lllaunch.console.table import RICH_STYLES, Column, Row, fitting
from lllaunch.console.views import (
    columns_of,
    head_rows,
    matches,
    path_text,
    sorted_rows,
)
from lllaunch.errors import LaunchError
from lllaunch.results.live import LiveReader, LiveView, Watched
from lllaunch.results.store import FoundDirectory, ListEntry
from lllaunch.text import plain
from lllaunch.words import StyledText, state_style
from lllaunch.workers.terminal import cells as cells_of


class TopApp(App[None]):
    """The app: a list, and lists that are opened from it."""

    TITLE = "lllaunch top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    DataTable { height: 1fr; }
    DataTable > .datatable--header {
        background: $background; color: $foreground; text-style: bold underline;
    }
    Input, Input:focus { display: none; height: 1; border: none; padding: 0 1; }
    FooterKey .footer-key--key { padding: 0; }
    FooterKey .footer-key--description { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, what: Watched, reader: LiveReader, each: float) -> None:
        super().__init__()
        self._what = what
        self.reader = reader
        self.each = each
        # the reader keeps what it has read, for one thread at a time
        self.reading = threading.Lock()
        # those of the terminal, light or dark
        # but without colours: textual would make black on black of the terminal's own
        names = () if self.no_color else ("ansi-dark", "textual-ansi")
        self.theme = next(filter(self.available_themes.__contains__, names), self.theme)

    def on_mount(self) -> None:
        """Show what was asked for."""
        self.push_screen(ListScreen(self._what))

    def action_help(self) -> None:
        """Show what keys do, or hide it."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def perform(self, *words: str, question: str = "") -> None:
        """Run a verb in the terminal, after a yes to a question, until Enter is pressed."""
        with self.suspend():
            # Ctrl-C ends what runs there; a handler is not inherited, as SIG_IGN would be
            former = signal.signal(signal.SIGINT, lambda *_: None)
            try:
                if not question or input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}:
                    subprocess.run([sys.executable, "-m", "lllaunch", *words], check=False)
                    input("\nEnter shows the list again. ")
            except EOFError:
                pass
            finally:
                signal.signal(signal.SIGINT, former)


class ListScreen(Screen[None]):
    """What goes on, the jobs of a sweep, or the ranks of a run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", show=False),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "find", key_display="/"),
        Binding("l", "log", "log"),
        Binding("k", "stacks", "stacks"),
        Binding("x", "stop", "stop"),
    ]

    def __init__(self, what: Watched) -> None:
        super().__init__()
        self.head = Static(id="head")
        self.table = DataTable[Text](cursor_type="row")
        self.filter = Input(placeholder="words; Escape shows all")
        self._what = what
        self._cwd = os.getcwd()
        self._view: LiveView | None = None
        self._rows: list[ListEntry] = []
        self._sorted_by = ""
        self._reversed = False
        # What the table shows: columns, titles, and the texts of each row by its key.
        self._columns: tuple[str, ...] = ()
        self._titles: tuple[str, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._cells: dict[str, tuple[str, ...]] = {}

    def compose(self) -> ComposeResult:
        """Return the parts."""
        yield from (self.head, self.table, self.filter, Footer())

    @property
    def top(self) -> TopApp:
        """The app."""
        assert isinstance(self.app, TopApp)
        return self.app

    def on_mount(self) -> None:
        """Look again and again."""
        self.set_interval(self.top.each, self.look)

    def on_screen_resume(self) -> None:
        """Look at once, also where somebody comes back."""
        self.look()

    def on_resize(self) -> None:
        """Show what has room now."""
        self._show()

    @work(thread=True)
    def look(self) -> None:
        """Read what goes on, unless nobody sees it, or that is being done."""
        app = self.top
        if not self.is_current or not app.reading.acquire(blocking=False):
            return
        try:
            self._view = app.reader.view(self._what)
        except (LaunchError, OSError) as error:
            app.call_from_thread(self._head, [(StyledText(str(error), "bad"),)])
        else:
            app.call_from_thread(self._show)
        finally:
            app.reading.release()

    def _head(self, rows: Iterable[Row]) -> None:
        """Show what stands above the table."""
        spans = ([(plain(each.text), RICH_STYLES[each.style]) for each in row] for row in rows)
        text = Text("\n", no_wrap=True).join(Text.assemble(*row) for row in spans)
        self.head.update(text)

    def _show(self) -> None:
        """Show what was seen last; what is as it was stays."""
        view, width, table = self._view, self.size.width, self.table
        if view is None:
            return
        self._head(head_rows(view, width - 2, self._cwd)[: max(1, self.size.height // 3)])
        columns = columns_of(view.kind, self._cwd)
        by = next((each for each in columns if each.title == self._sorted_by), None)
        rows = [row for row in view.rows if matches(row, self.filter.value, self._cwd)]
        selected = self._selected()
        self._rows = sorted_rows(rows, by, reverse=self._reversed)
        # with room for the mark of the column that it is sorted by
        fitted = fitting(columns, self._rows, width - 3)
        mark = "v" if self._reversed else "^"
        titles = tuple(f"{each.title}{mark if each is by else ''}" for each, _ in fitted)
        texts = zip(*(texts for _, texts in fitted), strict=True)
        widths = tuple(
            max(map(cells_of, (title, *texts)))
            for title, (_, texts) in zip(titles, fitted, strict=True)
        )
        cells = dict(zip((row.key for row in self._rows), texts, strict=False))

        def painted(text: str, column: Column, style: str = "") -> Text:
            shown = RICH_STYLES[style if column.title == "state" else ""]
            return Text(text, shown, justify="right" if column.right else "left", no_wrap=True)

        def cell(row: ListEntry, place: int) -> Text:
            return painted(cells[row.key][place], fitted[place][0], state_style(row.state))

        if (titles, widths, [*cells]) == (self._titles, self._widths, [*self._cells]):
            for row in self._rows:
                for place, text in enumerate(cells[row.key]):
                    if text != self._cells[row.key][place]:
                        table.update_cell(row.key, titles[place], cell(row, place))
        else:
            at = table.cursor_row
            table.clear(columns=True)
            for (column, _), title, wide in zip(fitted, titles, widths, strict=True):
                table.add_column(painted(title, column), key=title, width=wide)
            for row in self._rows:
                table.add_row(*(cell(row, place) for place in range(len(titles))), key=row.key)
            if selected is not None and selected.key in cells:
                at = [*cells].index(selected.key)
            table.move_cursor(row=at, animate=False)
        self._columns = tuple(each.title for each, _ in fitted)
        self._titles, self._widths, self._cells = titles, widths, cells

    def _selected(self) -> ListEntry | None:
        """Return the row that the cursor is on; of a run without ranks the run."""
        place = self.table.cursor_row
        if 0 <= place < len(self._rows):
            return self._rows[place]
        return self._view.subject if self._view is not None and not self._view.rows else None

    # What keys do

    def action_back(self) -> None:
        """Forget the filter, or go back."""
        if self.filter.display:
            self.filter.value = ""
            self.filter.display = False
            self.table.focus()
        elif len(self.app.screen_stack) > 2:  # textual's own, and the first one
            self.dismiss()

    def action_sort(self) -> None:
        """Sort by the next column; after the last one as at first."""
        order = ["", *self._columns]
        place = order.index(self._sorted_by) + 1 if self._sorted_by in order else 1
        self._sorted_by = order[place % len(order)]
        self._show()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._reversed = not self._reversed
        self._show()

    def action_filter(self) -> None:
        """Ask for words."""
        self.filter.display = True
        self.filter.focus()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Show what has the words, while they are written."""
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave the words as they are."""
        self.filter.display = bool(event.value)
        self.table.focus()

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Look into what was chosen."""
        row = self._selected()
        if row is not None and row.kind != "rank":
            kind: Literal["run", "sweep"] = "sweep" if row.kind == "sweep" else "run"
            self.app.push_screen(ListScreen(FoundDirectory(row.path, kind, frozenset())))
        else:
            self.action_log()

    def action_log(self) -> None:
        """Follow what a rank, or all ranks of a run, write."""
        self._perform("logs", "--follow")

    def action_stacks(self) -> None:
        """Show where workers stand; of a rank all threads."""
        self._perform("stacks")

    def _perform(self, *words: str) -> None:
        row = self._selected()
        if row is not None:
            chosen = () if row.kind != "rank" else (f"--rank={row.number}",)
            self.top.perform(*words, *chosen, row.path)

    def action_stop(self) -> None:
        """Stop a run, a job or a sweep after a yes; a rank cannot be ended by itself."""
        row = self._selected()
        if row is not None and row.kind == "rank" and self._view is not None:
            row = self._view.subject
        if row is not None:
            question = f"Stop the {row.kind} {path_text(row, self._cwd)}?"
            self.top.perform("stop", row.path, question=question)
