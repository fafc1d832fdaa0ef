"""Pages opened from the disk in the browser that this machine has, and what is wrong with them.

The browser is Debian's chromium or one that is as good; playwright drives it. What npm has (axe,
html-validate) is in the environment of the tests, where ``make`` puts it
(tests/browser/package.json).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

sync_api = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Scheme = Literal["light", "dark"]

# far more than any page may take: it bounds one that hangs
_MILLISECONDS = 240_000


def find_browser() -> str | None:
    """The path of a browser that playwright can drive, None if this machine has none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass
class Window:
    """A page that is open, and all that went wrong in it since."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self.faults.append(f"console: {message.text}")

    def _request(self, url: str) -> None:
        # the first is for the page itself
        if self.page.url not in {"about:blank", url}:
            self.faults.append(f"request: {url}")

    def texts(self, selector: str) -> list[str]:
        """What elements say, in the order of the document, with blanks as one."""
        script = "all => all.map(one => one.textContent.replace(/\\s+/g, ' ').trim())"
        found: list[str] = self.page.eval_on_selector_all(selector, script)
        return found

    def ask(self, script: str) -> Any:
        """What a script says, which the page's own policy does not stop."""
        return self.page.evaluate(script)


class Browsing:
    """A browser that is running."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(
        self,
        path: Path,
        *,
        scripts: bool = True,
        width: int = 1280,
        height: int = 800,
        scheme: Scheme = "light",
    ) -> Window:
        """A file in a window of its own, from which nothing can be reached."""
        context = self._browser.new_context(
            java_script_enabled=scripts,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            offline=True,
        )
        self._contexts.append(context)
        context.set_default_timeout(_MILLISECONDS)
        window = Window(context.new_page())
        window.page.goto(path.as_uri(), wait_until="load")
        return window

    def visit(self, server: str, path: str) -> Page:
        """A page of a server of this machine; nothing but that can be reached from it."""
        context = self._browser.new_context(service_workers="block")
        self._contexts.append(context)
        context.set_default_timeout(_MILLISECONDS)
        context.route(lambda url: not url.startswith(f"{server}/"), lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{server}/{path}", wait_until="load")
        return page

    def close_windows(self) -> None:
        """Close all that was opened."""
        while self._contexts:
            self._contexts.pop().close()


def browse() -> Iterator[Browsing]:
    """A browser while it is used; no process of it is left."""
    path = find_browser()
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)}")
    # it refuses root otherwise; what is opened are files of these tests
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield Browsing(browser)
        finally:
            browser.close()


def overflow(window: Window) -> int:
    """By how many pixels a page is wider than its window, also where it hides that."""
    script = """() => {
      const hidden = [document.documentElement, document.body].filter(
        (one) => ["hidden", "clip"].includes(getComputedStyle(one).overflowX));
      for (const one of hidden) one.style.overflowX = "visible";
      const root = document.documentElement;
      return Math.max(root.scrollWidth, document.body.scrollWidth) - root.clientWidth;
    }"""
    return int(window.ask(script))


@dataclass(frozen=True)
class Stop:
    """Where the keyboard's focus comes to: the element in short, and what its outline shows."""

    element: str
    outline: str
    shown: bool


def stops(window: Window, most: int = 200) -> list[Stop]:
    """What is reached with the tabulator from a page's beginning, in that order."""
    window.page.evaluate("() => { document.activeElement?.blur(); window.scrollTo(0, 0); }")
    found: list[Stop] = []
    seen = """() => {
      const one = document.activeElement;
      if (one === null || one === document.body || one.dataset.seen) return null;
      one.dataset.seen = "yes";
      const style = getComputedStyle(one), box = one.getBoundingClientRect();
      const { outlineStyle, outlineWidth, boxShadow } = style;
      const outline = outlineStyle === "none" ? "" : outlineStyle + " " + outlineWidth;
      const shadow = boxShadow === "none" ? "" : boxShadow;
      const text = (one.getAttribute("aria-label") || one.textContent || one.id).trim();
      const element = one.tagName.toLowerCase() + " " + text.slice(0, 60);
      return { element, outline: outline || shadow,
               shown: box.width > 0 && box.height > 0 && box.right > 0 && box.bottom > 0 };
    }"""
    for _ in range(most):
        window.page.keyboard.press("Tab")
        stop = window.ask(seen)
        if stop is None:
            break
        found.append(Stop(**stop))
    window.ask("() => document.querySelectorAll('[data-seen]').forEach(e => delete e.dataset.seen)")
    return found


def unseen(window: Window) -> list[str]:
    """Texts in `details` that are not shown now, in short; fields to type into are no texts."""
    script = """() => [...document.querySelectorAll("details > :not(summary)")].filter((one) =>
      one.textContent.trim() && !one.querySelector("input")
      && !one.checkVisibility({ visibilityProperty: true })
    ).map((one) => one.textContent.trim().slice(0, 60))"""
    found: list[str] = window.ask(script)
    return found


class Shown(NamedTuple):
    """A cell of a table: what it says, and the number that it is sorted by, if any."""

    text: str
    value: float | None


def tables(window: Window) -> dict[str, list[dict[str, Shown]]]:
    """All tables of a page by caption: their rows from top to bottom, by heading of the column."""
    script = """() => [...document.querySelectorAll("table")].map((table) => ({
      caption: table.caption.textContent.trim(),
      heads: [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim()),
      rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => [
        cell.textContent.replace(/\\s+/g, " ").trim(), cell.dataset.v ?? null])),
    }))"""
    found: dict[str, list[dict[str, Shown]]] = {}
    for table in window.ask(script):
        rows = [
            {
                head: Shown(text, None if value is None else float(value))
                for head, (text, value) in zip(table["heads"], cells, strict=True)
            }
            for cells in table["rows"]
        ]
        assert table["caption"] not in found, "two tables have one name"
        found[table["caption"]] = rows
    return found


# What npm has ------------------------------------------------------------------------------------


def _module(name: str) -> Path:
    """Where npm has put a package; skips the test where it has not."""
    places = [os.path.join(sys.prefix, "node_modules"), os.environ.get("NODE_PATH", "")]
    for place in os.pathsep.join(filter(None, places)).split(os.pathsep):
        if (found := Path(place) / name).is_dir():
            return found
    pytest.skip(f"npm has not installed {name}: `make` does where there is npm")


@functools.cache
def _axe(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def inaccessible(window: Window) -> list[str]:
    """What axe holds against a page: rule, element, reason. It needs scripts."""
    window.page.evaluate(_axe(_module("axe-core") / "axe.min.js"))
    # its own requests for style sheets would be requests of the page
    options = "{preload: false, resultTypes: ['violations']}"
    found = window.ask(f"async () => (await axe.run(document, {options})).violations")
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]


_VALIDATE = """
const { HtmlValidate, StaticConfigLoader } = require("html-validate");
const config = { root: true, extends: ["html-validate:recommended"] };
const validate = new HtmlValidate(new StaticConfigLoader(config));
(async () => {
  for (const file of process.argv.slice(1)) {
    const report = await validate.validateFile(file);
    for (const { messages } of report.results)
      for (const one of messages)
        console.log(`${file}:${one.line}:${one.column}: ${one.ruleId}: ${one.message}`);
  }
})();
"""


def invalid(paths: Sequence[Path]) -> list[str]:
    """What html-validate holds against files: place, rule, reason."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    modules = _module("html-validate").parent
    ended = subprocess.run(
        [node, "-e", _VALIDATE, *map(str, paths)],
        env=os.environ | {"NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=_MILLISECONDS / 1000,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()
