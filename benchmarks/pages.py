"""Measures pages of large runs and sweeps: how big they are, how soon made, how soon open.

    python benchmarks/pages.py               a run of 256 ranks, a sweep of 1,000 jobs
    python benchmarks/pages.py --rounds 20   more often

The runs are made up (benchmarks/generated.py), the pages are made and opened as users do: by the
command, and from the disk in a chromium. "Open" is from the beginning of the navigation until all
of the page is laid out and its script has run, "seen" until something is on the screen, and
"sorted" what sorting its longest table takes. Shown are medians, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from generated import write_run, write_sweep
from launch import table
from playwright.sync_api import Browser, sync_playwright
from workplace import machine

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_OPENED = """() => new Promise((done) => {
  const load = performance.getEntriesByType("navigation")[0];
  new PerformanceObserver((list) => {
    const seen = list.getEntriesByName("first-contentful-paint")[0];
    if (seen) done([load.loadEventEnd, seen.startTime]);
  }).observe({ type: "paint", buffered: true });
})"""

# until the rows lie where they belong, not only until the script has returned
_SORTED = """() => {
  const size = (table) => table.tBodies[0].rows.length;
  const tables = [...document.querySelectorAll("table[data-sort]")];
  const longest = tables.reduce((a, b) => (size(b) > size(a) ? b : a));
  const began = performance.now();
  longest.querySelector("th:last-of-type button").click();
  document.body.getBoundingClientRect();
  return performance.now() - began;
}"""


def make(directory: Path, page: Path) -> float:
    """Seconds that the command takes that makes a page."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "lllaunch", "report", str(directory), "--format", "html"]
    subprocess.run([*command, "--output", str(page)], check=True)
    return time.perf_counter() - began


def open_page(browser: Browser, page: Path) -> list[float]:
    """Seconds until a page is open, until something is seen, and to sort its longest table."""
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.goto(page.as_uri(), wait_until="load")
    opened, seen = window.evaluate(_OPENED)
    in_order = window.evaluate(_SORTED)
    window.close()
    return [opened / 1000, seen / 1000, in_order / 1000]


def shown(seconds: Sequence[float]) -> str:
    """Median, least and greatest."""
    middle, least, most = (1000 * of(seconds) for of in (statistics.median, min, max))
    return f"{middle:.0f} ms ({least:.0f}-{most:.0f})"


def row(name: str, browser: Browser, page: Path, made: Sequence[float], rounds: int) -> list[str]:
    """Measure one page."""
    data = page.read_bytes()
    columns = zip(*(open_page(browser, page) for _ in range(rounds)), strict=True)
    return [
        name,
        f"{len(data) / 1e6:.2f} MB",
        f"{len(gzip.compress(data)) / 1e6:.2f} MB",
        shown(made),
        *map(shown, columns),
    ]


_WRITTEN: dict[str, Callable[[Path, int], None]] = {
    "a run of {} ranks": write_run,
    "a sweep of {} jobs": write_sweep,
}


def main() -> None:
    """Measure both pages and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args()
    path = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if path is None:
        parser.error("there is no chromium")
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    rows, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        for (name, write), size in zip(
            _WRITTEN.items(), (options.ranks, options.jobs), strict=True
        ):
            directory, page = Path(place, str(size)), Path(place, f"{size}.html")
            write(directory, size)
            made = [make(directory, page) for _ in range(min(3, options.rounds))]
            rows.append(row(name.format(size), browser, page, made, options.rounds))
        browser.close()
    head = ["page of", "size", "compressed", "made", "open", "seen", "sorted"]
    print(table([head, *rows]))
    on = ", ".join(f"{name} {value}" for name, value in machine().items())
    on += f", load before {load:.1f}"
    print(f"\nOn: {on}.")


if __name__ == "__main__":
    main()
