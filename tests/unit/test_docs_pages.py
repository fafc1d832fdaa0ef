"""Pages that follow from the code are up to date; the check of our words finds odd ones."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = runpy.run_path(str(ROOT / "docs/check_prose.py"))["check"]


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs/generate_cli_reference.py"))["page"]
    path = ROOT / "docs/reference/cli.md"
    assert page() == path.read_text(), "run python docs/generate_cli_reference.py"


def test_every_variable_of_ours_is_on_its_page_and_no_other() -> None:
    sources = [*(ROOT / "lllaunch").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")]
    pattern = re.compile(r"\bLLLAUNCH_[A-Z_]*[A-Z]\b")
    read = {name for path in sources for name in pattern.findall(path.read_text())}
    page = (ROOT / "docs/reference/environment.md").read_text()
    rows = re.findall(r"^\| `(LLLAUNCH_\w+)`", page, re.MULTILINE)
    assert sorted(rows) == sorted(read)


# what we wrote once, and what we write in its place
BEFORE_AND_AFTER = {
    "What workers have left behind and a sweep of them has given up is let be": "Orphans that"
    " cleanup has given up on are no longer touched when their parent exits",
    "How to [a](a.md), [b](b.md) and [c](c.md) says more": "See also: a, b, c",
    "What is none is omitted, and about thirty have room": "Non-numbers are ignored",
    "who reads it with `tail -f` says `tail -F`": "use `tail -F`, not `tail -f`",
    "416 of 450 told right": "416 of 450 correct",
    "The house: its rooms": "Architecture",
    "word " * 26: "word " * 25,
    f"{'incomprehensibility ' * 6}. " * 12: "It is easy to read. " * 20,
}


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER.items())
def test_odd_words_are_found_and_plain_ones_are_not(before: str, after: str) -> None:
    assert list(CHECK(before))
    assert not list(CHECK(after))


def test_code_tables_and_lists_of_names_are_no_long_sentences() -> None:
    text = f"```text\n{'word ' * 40}\n```\n\n| {'word ' * 40} |\n\n{'`a`, ' * 40}and `b`.\n"
    assert not list(CHECK(text))
    (found,) = CHECK(f"# A page\n\nShort.\n\n- {'word, ' * 31}\n")
    assert found[0] == 5
