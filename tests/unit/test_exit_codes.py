"""What the launcher exits with, as the page about it says."""

from __future__ import annotations

import re
from pathlib import Path

from lllaunch.exit_codes import ExitCode, for_signal

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_every_exit_code_is_on_the_page_about_them() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)]
    assert listed == sorted(ExitCode)


def test_the_codes_of_signals_are_not_those_of_anything_else() -> None:
    assert for_signal(15) == 143
    assert max(ExitCode) < for_signal(1)
