"""``top`` with keys: an app of textual's, which shows what `lllaunch.results.live` reads.

It is imported only where somebody has textual and a terminal. Files are read and launchers are
asked in threads, so that keys are obeyed meanwhile; what fails is said in the line above the keys.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, HelpPanel, Input, RichLog, Static

from lllaunch.console.live_table import (
    columns_of,
    head_rows,
    matches,
    path_text,
    sorted_rows,
)
from lllaunch.console.table import RICH_STYLES, Column, Row, decoded, fitting
from lllaunch.errors import LaunchError
from lllaunch.results.history import AppendedLines
from lllaunch.results.live import LiveReader, LiveView
from lllaunch.results.store import ListEntry, locate
from lllaunch.text import plain
from lllaunch.verbs.logs import last_attempt, worker_logs
from lllaunch.verbs.stacks import stack_lines
from lllaunch.verbs.stop import stopped
from lllaunch.verbs.top import Watched
from lllaunch.words import StyledText, state_style
from lllaunch.workers.terminal import cells, cut

if TYPE_CHECKING:
    from lllaunch.verbs.logs import WorkerLog

_STOP = "Its workers get SIGTERM and the grace period, as with Ctrl-C."
# Of a log when it is opened, bytes; and what is kept of it, lines.
_LOG_WINDOW, _LOG_LINES = 64 << 10, 5000
_LOG_PAUSE = 0.5
_LONGEST_LINE = 2000
_PADDING = 1


def run_app(what: Watched, reader: LiveReader, each: float) -> None:
    """Show what goes on until somebody quits."""
    TopApp(what, reader, each).run()


class TopApp(App[None]):
    """The app."""

    TITLE = "lllaunch top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    DataTable { height: 1fr; }
    DataTable > .datatable--header {
        background: $background; color: $foreground; text-style: bold underline;
    }
    #filter, #filter:focus { display: none; height: 1; border: none; padding: 0 1; }
    FooterKey .footer-key--key { padding: 0; }
    FooterKey .footer-key--description { padding: 0 1; }
    #status { height: 1; padding: 0 1; }
    #rest { height: 1; padding: 0 1; }
    ModalScreen { align: center middle; }
    ModalScreen Vertical {
        width: auto; max-width: 90%; height: auto; max-height: 90%;
        padding: 0 1; border: solid $primary; background: $surface;
    }
    ModalScreen Static { width: auto; max-width: 100%; }
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
        self.cwd = os.getcwd()
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

    def beside(self, work: Callable[[], Callable[[], object]]) -> None:
        """Do something in a thread, and what it returns in the app; say why it could not be done.

        The thread is a daemon: who quits does not wait for it.
        """

        def do() -> None:
            try:
                then = work()
            except (LaunchError, OSError) as error:
                then = partial(self.say, str(error), bad=True)
            except Exception as error:  # noqa: BLE001 - a thread's would be lost
                then = partial(self.say, f"{type(error).__name__}: {error}", bad=True)
            # the app, or what was to be shown, may be gone by now
            with contextlib.suppress(Exception):
                self.call_from_thread(then)

        threading.Thread(target=do, daemon=True).start()

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a message above the keys of what is shown, until the next one."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, StatusScreen):
                screen.say(text, bad=bad)
                return


def _painted(rows: Iterable[Row]) -> Text:
    """Return rows as text of rich's."""
    text = Text(no_wrap=True)
    for place, row in enumerate(rows):
        text.append("\n" if place else "")
        for span in row:
            text.append(plain(span.text), RICH_STYLES[span.style])
    return text


class StatusScreen(Screen[None]):
    """A screen with a line for messages above its keys, which looks at something in a thread."""

    _looking = False

    @property
    def top(self) -> TopApp:
        """The app."""
        assert isinstance(self.app, TopApp)
        return self.app

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a message."""
        line = plain(text.partition("\n")[0])
        style = RICH_STYLES["bad" if bad else ""]
        self.query_one("#status", Static).update(Text(line, style, no_wrap=True))

    def look(self) -> Callable[[], object]:
        """Look, in a thread; return what shows that."""
        raise NotImplementedError

    def look_again(self) -> None:
        """Look at what is shown, unless that is being done, or nobody sees it."""
        if self._looking or not self.is_current:
            return
        self._looking = True

        def work() -> Callable[[], object]:
            try:
                return self.look()
            finally:
                self._looking = False

        self.top.beside(work)


class ListScreen(StatusScreen):
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
        self._what = what
        self._view: LiveView | None = None
        self._rows: list[ListEntry] = []
        self._sorted_by = ""
        self._reversed = False
        self._wanted = ""
        # What the table shows: titles, and the texts of each row by its key.
        self._titles: tuple[str, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._cells: dict[str, tuple[str, ...]] = {}

    def compose(self) -> ComposeResult:
        """Return the parts."""
        yield Static(id="head")
        yield DataTable[Text](cursor_type="row", cell_padding=_PADDING)
        yield Input(id="filter", placeholder="words")
        yield Static(id="status")
        yield Footer()

    @property
    def table(self) -> DataTable[Text]:
        """The table."""
        return self.query_one(DataTable)

    def on_mount(self) -> None:
        """Look at once, and then again and again."""
        self.set_interval(self.top.each, self.look_again)
        self.look_again()

    def on_screen_resume(self) -> None:
        """Look at once, also where somebody comes back."""
        self.look_again()

    def on_resize(self) -> None:
        """Show what has room now."""
        self._show()

    def look(self) -> Callable[[], object]:
        """Read what goes on."""
        with self.top.reading:
            self._view = self._what.view(self.top.reader)
        return self._show

    def _show(self) -> None:
        """Show what was seen last."""
        view = self._view
        if view is None:
            return
        app = self.top
        columns = columns_of(view, app.cwd)
        by = next((each for each in columns if each.title == self._sorted_by), None)
        rows = [row for row in view.rows if matches(row, self._wanted, app.cwd)]
        self._rows = sorted_rows(rows, by, reverse=self._reversed)
        width = self.size.width
        self.query_one("#head", Static).update(
            _painted(head_rows(view, width - 2, app.cwd)[: max(1, self.size.height // 3)])
        )
        # with room for the mark of the column that it is sorted by
        self._fill(fitting(columns, self._rows, width - 2 * _PADDING - 1), by)

    def _fill(self, columns: list[tuple[Column, list[str]]], by: Column | None) -> None:
        """Make the table show columns; what is as it was stays."""
        table = self.table
        mark = "v" if self._reversed else "^"
        titles = tuple(
            f"{column.title}{mark}" if column is by else column.title for column, _ in columns
        )
        texts = zip(*(texts for _, texts in columns), strict=True) if columns else iter(())
        shown = dict(zip((row.key for row in self._rows), texts, strict=False))
        widths = tuple(
            max(map(cells, [title, *column[1]]))
            for title, column in zip(titles, columns, strict=True)
        )
        selected, at = self._selected_key(), table.cursor_row
        # columns that move are hard to read: they grow as long as there is room
        grown = tuple(map(max, widths, self._widths)) if titles == self._titles else widths
        fits = sum(grown) + 2 * _PADDING * len(grown) <= self.size.width
        if fits and (titles, grown, [*shown]) == (self._titles, self._widths, [*self._cells]):
            for row in self._rows:
                old, new = self._cells[row.key], shown[row.key]
                values = self._texts(row, new, columns) if old != new else ()
                for (column, _), value in zip(columns, values, strict=False):
                    table.update_cell(row.key, column.title, value)
        else:
            self._widths = grown if fits else widths
            table.clear(columns=True)
            # measured here once: textual would measure each cell again
            for (column, _), title, width in zip(columns, titles, self._widths, strict=True):
                label = Text(title, justify="right" if column.right else "left")
                table.add_column(label, key=column.title, width=width)
            for row in self._rows:
                table.add_row(*self._texts(row, shown[row.key], columns), key=row.key)
            keys = [*shown]
            place = keys.index(selected) if selected in shown else min(at, len(keys) - 1)
            table.move_cursor(row=max(0, place), animate=False)
        self._titles, self._cells = titles, shown

    def _texts(
        self, row: ListEntry, texts: tuple[str, ...], columns: list[tuple[Column, list[str]]]
    ) -> list[Text]:
        style = RICH_STYLES[state_style(row.state)]
        return [
            Text(
                text,
                style if column.title == "state" else "",
                justify="right" if column.right else "left",
                no_wrap=True,
            )
            for text, (column, _) in zip(texts, columns, strict=True)
        ]

    def _selected_key(self) -> str | None:
        keys = [*self._cells]
        place = self.table.cursor_row
        return keys[place] if 0 <= place < len(keys) else None

    def _selected(self) -> ListEntry | None:
        """Return the row that the cursor is on; of a run without ranks the run."""
        key = self._selected_key()
        row = next((row for row in self._rows if row.key == key), None)
        if row is None and self._view is not None and not self._view.rows:
            row = self._view.subject
        if row is None:
            self.say("there is nothing to choose", bad=True)
        return row

    # What keys do

    def action_back(self) -> None:
        """Close the filter, forget it, or go back."""
        field = self.query_one("#filter", Input)
        if field.display or self._wanted:
            field.value = self._wanted = ""
            field.display = False
            self.table.focus()
            self.say("")
            self._show()
        elif len(self.app.screen_stack) > 2:  # textual's own, and the first one
            self.dismiss()

    def action_sort(self) -> None:
        """Sort by the next column."""
        if self._view is None:
            return
        shown = [title.rstrip("^v") for title in self._titles]
        order = ["", *shown]
        place = order.index(self._sorted_by) + 1 if self._sorted_by in order else 1
        self._sorted_by = order[place % len(order)]
        self.say(f"sorted by {self._sorted_by}" if self._sorted_by else "in the order of old")
        self._show()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._reversed = not self._reversed
        self._show()

    def action_filter(self) -> None:
        """Ask for words."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what has the words, while they are written."""
        self._wanted = event.value
        self._show()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Leave the words as they are."""
        self.query_one("#filter", Input).display = False
        self.table.focus()
        self.say(f"only what has: {self._wanted}; Escape shows all" if self._wanted else "")

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Look into what was chosen."""
        row = self._selected()
        if row is None:
            return
        if row.kind == "rank":
            self.action_log()
        else:
            kind = "sweep" if row.kind == "sweep" else "run"
            self.app.push_screen(ListScreen(Watched(row.path, kind=kind)))

    def action_log(self) -> None:
        """Show what a rank writes."""
        self._open(LogScreen, "log")

    def action_stacks(self) -> None:
        """Show where workers stand."""
        self._open(StacksScreen, "workers")

    def _open(self, screen: Callable[[ListEntry], Screen[None]], what: str) -> None:
        row = self._selected()
        if row is not None and row.kind == "sweep":
            self.say(f"a sweep has no {what} of its own: choose one of its jobs", bad=True)
        elif row is not None:
            self.app.push_screen(screen(row))

    def action_stop(self) -> None:
        """Ask whether something is to be stopped, and do that."""
        row = self._selected()
        if row is not None and row.kind == "rank" and self._view is not None:
            # a rank cannot be ended by itself
            row = self._view.subject
        if row is None:
            return
        where = path_text(row, self.top.cwd)
        if not row.is_live:
            self.say(f"{where} is over", bad=True)
            return
        path, app = row.path, self.top

        def work() -> Callable[[], object]:
            text = stopped(locate(path))
            with app.reading:
                app.reader.forget(path)
            return partial(app.say, text)

        def answered(stop: bool | None) -> None:
            self.say(f"stopping {where} ..." if stop else f"{where} was not stopped")
            if stop:
                app.beside(work)

        app.push_screen(Question(f"Stop the {row.kind} {where}?"), answered)


class Question(ModalScreen[bool]):
    """A question to be answered with yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n", "answer(False)", "no"),
        Binding("escape", "answer(False)", "no", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = f"{text}\n{_STOP}"

    def compose(self) -> ComposeResult:
        """Return the parts."""
        with Vertical():
            yield Static(Text(f"{self._text}\n\ny  yes    n  no"))

    def action_answer(self, yes: bool) -> None:
        """Answer."""
        self.dismiss(yes)


class LogScreen(StatusScreen):
    """What a rank has written of late, and writes.

    ``row``: the rank; a run or a job for its first one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]

    def __init__(self, row: ListEntry) -> None:
        super().__init__()
        self._row = row
        self._rank = row.number if row.kind == "rank" else None
        self._attempt = -1
        self._files: dict[WorkerLog, AppendedLines] = {}

    def compose(self) -> ComposeResult:
        """Return the parts."""
        yield Static(id="head")
        yield RichLog(max_lines=_LOG_LINES, wrap=False, highlight=False, markup=False)
        yield Static(id="rest")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Read at once, and then again and again."""
        self.set_interval(_LOG_PAUSE, self.look_again)
        self.query_one(RichLog).focus()
        self.look_again()

    def look(self) -> Callable[[], object]:
        """Read what was added."""
        lines: list[Text] = []
        return partial(self._show, lines, self._read(lines))

    def _read(self, lines: list[Text]) -> str:
        """Read what was added; return what stands in the last line, which is not whole."""
        path = self._row.path
        attempt = last_attempt(path)
        if attempt != self._attempt:
            if self._attempt >= 0:
                lines.append(Text(f"attempt {attempt}", "bold"))
            self._attempt = attempt
            self._files.clear()
        logs = worker_logs(path, attempt)
        if self._rank is None and logs:
            self._rank = logs[0].rank
        rest = ""
        for log in logs:
            if log.rank != self._rank:
                continue
            file = self._files.setdefault(log, AppendedLines(log.path, _LOG_WINDOW))
            style = RICH_STYLES["bad" if log.stream == "stderr" else ""]
            lines += [Text(_shown(line), style) for _, line in file.added()]
            rest = _shown(file.rest[-_LOG_WINDOW:]) or rest
        return rest

    def _show(self, lines: list[Text], rest: str) -> None:
        rank = "" if self._rank is None else f", rank {self._rank}"
        head = f"{path_text(self._row, self.top.cwd)}{rank}, attempt {max(0, self._attempt)}"
        self.query_one("#head", Static).update(Text(head, "bold", no_wrap=True))
        pane = self.query_one(RichLog)
        for line in lines[-_LOG_LINES:]:
            pane.write(line)
        width = max(1, self.size.width - 2)
        self.query_one("#rest", Static).update(Text(cut(rest, width), no_wrap=True))
        nothing = "nothing is kept of its output in files; launch.redirects keeps it"
        self.say("" if self._files else nothing, bad=True)


def _shown(line: bytes) -> str:
    return plain(decoded(line[-_LOG_WINDOW:]))[:_LONGEST_LINE]


class StacksScreen(StatusScreen):
    """Where the workers of a run stand.

    ``row``: the run or the job; a rank for all of its threads.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back"),
        Binding("k", "take", "again"),
    ]

    def __init__(self, row: ListEntry) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        """Return the parts."""
        with VerticalScroll():
            yield Static(id="stacks")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Ask at once."""
        self.action_take()

    def action_take(self) -> None:
        """Ask where the workers stand."""
        self.say("asking ...")
        self.look_again()

    def look(self) -> Callable[[], object]:
        """Ask where the workers stand."""
        row = self._row
        chosen = None if row.kind != "rank" or row.number is None else frozenset({row.number})
        lines = stack_lines(locate(row.path), chosen)
        return partial(self._show, lines)

    def _show(self, lines: list[StyledText]) -> None:
        self.query_one("#stacks", Static).update(_painted((line,) for line in lines))
        self.say("")
