"""Whether the tests find seeded defects: ``python -m tests.mutants``.

Each patch beside this file puts one defect into lllaunch, as a refactoring might. It is applied in
a copy of the tree, the tests of its room run there until one fails, and it is taken back. A test
that fails without a defect, too, finds none: it is left out, and told of in the end. ``--check``
runs all of them without a defect first, which takes long and saves the doubt.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from lllaunch.linux import proc
from lllaunch.spawner.orphans import signal_process

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEAST = 27  # so many of the thirty are to be found
LIMIT = 3600  # seconds; a single test has a limit of its own
_LEFT_OUT = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "mutants")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_TESTS = re.compile(r"^Tests: (.+)$", re.MULTILINE)
_WHERE = "import lllaunch as a, hydra_plugins.lllaunch_launcher as b; print(a.__file__, b.__file__)"


class Copy:
    """A copy of the tree, from which all processes there import, whatever is installed."""

    def __init__(self, place: Path, tests: Path) -> None:
        self.place = place
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*_LEFT_OUT, "tests"))
        shutil.copytree(tests, place / "tests", ignore=shutil.ignore_patterns(*_LEFT_OUT))
        out = ("PYTEST", "COVERAGE", "PYTHONDONTWRITEBYTECODE")
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith(out)}
        self._environ |= dict.fromkeys(("PYTHONPATH", "MUTANTS_COPY"), f"{place}")
        self._environ["GIT_CEILING_DIRECTORIES"] = f"{place.parent}"
        words = [sys.executable, "-c", _WHERE]
        said = subprocess.check_output(words, cwd="/", env=self._environ, text=True)
        assert all(path.startswith(f"{place}/") for path in said.split()), said

    def files(self, patches: Iterable[Path]) -> list[str]:
        """Return the files of tests that the headers of patches name, in their order."""
        globs = (name for each in patches for name in _TESTS.findall(each.read_text())[0].split())
        found = [path for name in globs for path in sorted(self.place.glob(f"tests/{name}"))]
        return [f"{path.relative_to(self.place)}" for path in dict.fromkeys(found)]

    def apply(self, patch: Path, *options: str) -> None:
        """Put a defect into the copy, or with ``--reverse`` take it back."""
        words = ["git", "apply", *options, f"{patch}"]
        subprocess.run(words, cwd=self.place, env=self._environ, check=True)
        for name in re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.MULTILINE):
            # the file may have changed twice in a second, and by no byte in its length
            Path(cache_from_source(f"{self.place / name}")).unlink(missing_ok=True)

    def failing(self, tests: Iterable[str], red: Sequence[str], option: str) -> list[str]:
        """Run tests, without those that are red; return those that failed, in order."""
        chosen = [each for each in tests if each not in red]
        assert chosen, "there are no tests of that name"
        words = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", option]
        words += [*(f"--deselect={each}" for each in red), *chosen]
        with tempfile.TemporaryFile() as file:
            pytest = subprocess.Popen(
                *(words, -1, None, subprocess.DEVNULL, file, subprocess.STDOUT),
                cwd=self.place,
                env=self._environ,
                start_new_session=True,
            )
            try:
                with suppress(subprocess.TimeoutExpired):
                    pytest.wait(LIMIT)
            finally:
                self.end()
            code = pytest.wait()
            file.seek(0)
            found: list[str] = _FAILED.findall(file.read().decode(errors="replace"))
        return [] if code in (0, 5) else found or [f"(pytest ended with {code})"]

    def end(self) -> None:
        """End what runs here: the tests, and what they have left behind."""
        for process in proc.processes():
            if proc.environment_holds(process.pid, f"MUTANTS_COPY={self.place}".encode()):
                signal_process(process, signal.SIGKILL)

    def find(self, patch: Path, red: list[str]) -> str:
        """Return the first test that fails with a defect and not without, or an empty string."""
        while True:
            self.apply(patch)
            try:
                first, *_ = self.failing(self.files([patch]), red, "-x") or [""]
            finally:
                self.apply(patch, "--reverse")
            if "::" not in first or not self.failing([first], (), "-x"):
                return first
            red.append(first)


def judge(patch: Path, free: list[Copy], red: list[str]) -> bool:
    """Return whether a defect is found, and print by what."""
    copy, began = free.pop(), time.monotonic()
    try:
        by = copy.find(patch, red)
    finally:
        free.append(copy)
    room, word = patch.stem.split("-")[1], "found" if by else "survived"
    row = f"{patch.stem:26}{room:13}{word:10}{by:90}"
    print(f"{row}{time.monotonic() - began:5.0f} s", flush=True)
    return bool(by)


def main() -> int:
    """Try all defects, or those that are named; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="or its beginning; default: all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="first see which are red")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    patches = sorted(path for name in args.names or [""] for path in HERE.glob(f"{name}*.patch"))
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as place:
        copies = [Copy(Path(place, f"{n}"), args.tests) for n in range(max(1, args.jobs))]
        files = copies[0].files(patches) if args.check else []
        red = copies[0].failing(files, (), "--continue-on-collection-errors") if files else []
        with ThreadPoolExecutor(len(copies)) as threads:
            free = [*copies]
            try:
                found = sum(threads.map(lambda each: judge(each, free, red), patches))
            finally:
                for each in copies:
                    each.end()
    print("\n".join([f"red without a defect: {len(red)}", *red]))
    print(f"{found} found, {len(patches) - found} survived")
    return int(found < min(LEAST, len(patches)))


if __name__ == "__main__":
    sys.exit(main())
