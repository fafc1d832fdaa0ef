"""Measures pages of large runs and sweeps: how big they are, how soon made, how soon open.

    python benchmarks/pages.py               a run of 256 ranks, a sweep of 1,000 jobs
    python benchmarks/pages.py --rounds 20   more often

The runs are made up (benchmarks/generated.py), the pages are made and opened as users do: by the
command, and from the disk in a chromium. "Made" and "shown" are the time and the most memory that
`report --format html` and `show` take as whole processes. "Open" is from the beginning of the
navigation until all of the page is laid out and its script has run, "seen" until something is on
the screen, and "sorted" what sorting its longest table takes. Shown are medians, with the least and
the greatest.
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


def costs(*words: str) -> tuple[float, int]:
    """Seconds that one of lllaunch's verbs takes, and the most bytes that it holds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "lllaunch", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    # a run that failed is shown with its own exit code
    assert process.returncode >= 0
    return time.perf_counter() - began, 1024 * used.ru_maxrss


def said(costs: Sequence[tuple[float, int]]) -> str:
    """Time and memory of a verb."""
    seconds, memory = zip(*costs, strict=True)
    return f"{shown(seconds)}, {max(memory) / 1e6:.0f} MB"


def open_page(browser: Browser, page: Path) -> list[float]:
    """Seconds until a page is open, until something is seen, and to sort its longest table."""
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.goto(page.as_uri(), wait_until="load")
    opened, seen = window.evaluate(_OPENED)
    in_order = window.evaluate(_SORTED)
    window.close()
    return [opened / 1000, seen / 1000, in_order / 1000]


def shown(seconds: Sequence[float]) -> str:
    """Median, least and greatest of some seconds."""
    middle, least, most = (1000 * of(seconds) for of in (statistics.median, min, max))
    return f"{middle:.0f} ms ({least:.0f}-{most:.0f})"


def row(name: str, browser: Browser, directory: Path, rounds: int) -> list[str]:
    """Measure what one directory is shown as."""
    page = directory.with_suffix(".html")
    report = ("report", str(directory), "--format", "html", "--output", str(page))
    made = [costs(*report) for _ in range(min(3, rounds))]
    show = [costs("show", str(directory)) for _ in range(min(3, rounds))]
    data = page.read_bytes()
    columns = zip(*(open_page(browser, page) for _ in range(rounds)), strict=True)
    return [
        name,
        f"{len(data) / 1e6:.2f} MB",
        f"{len(gzip.compress(data)) / 1e6:.2f} MB",
        said(made),
        said(show),
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
            directory = Path(place, str(size))
            write(directory, size)
            rows.append(row(name.format(size), browser, directory, options.rounds))
        browser.close()
    head = ["page of", "size", "compressed", "made", "shown", "open", "seen", "sorted"]
    print(table([head, *rows]))
    on = ", ".join(f"{name} {value}" for name, value in machine().items())
    on += f", load before {load:.1f}"
    print(f"\nOn: {on}.")


if __name__ == "__main__":
    main()
