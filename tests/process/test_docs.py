"""README and docs: commands run, what is shown comes out, links lead somewhere.

The blocks of a page run in order in one shell, in a copy of what a checkout holds; those of the
README and of all the tutorial's pages in an empty directory. `bash` and `python` blocks run; a
block marked `text output` holds lines that the block before it prints, in that order, apart from
numbers, dates and paths. A line `...` stands for any others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.launching import WAIT, environment

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = sorted([*(ROOT / name for name in TOP_PAGES), *(ROOT / "docs").rglob("*.md")])
# what the commands on the pages work with
COPIED = ("conf", "examples", "LICENSE", *TOP_PAGES)
SECONDS = 2 * WAIT

# what commands need besides lllaunch itself
NEEDED = {
    r"exp=(resnet|sweep)|examples/(resnet|own_app)": ("sklearn", "tqdm"),
    r"import pytorch_lightning": ("pytorch_lightning",),
    r"from (transformers|accelerate) import": ("transformers", "accelerate"),
}

FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[([^][]*)\]\(([^()\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^][]*\]\(([^()\s]+)\)")


class Block(NamedTuple):
    """A fenced block of a page: what it is marked as, and its text."""

    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; of the tutorial those of all its pages."""
    text = page.read_text()
    if page == TUTORIAL:
        text = "".join(
            (page.parent / each).read_text() for each in LINK.findall(text) if "/" in each
        )
    return [Block(mark.strip(), code) for mark, code in FENCE.findall(text)]


def runs(page: Path) -> bool:
    """Whether there are commands on a page, which run by themselves."""
    return page.parent.name != "tutorial" and not {"bash", "python"}.isdisjoint(
        block.mark for block in blocks(page)
    )


def names(pages: list[Path], smoke: Path | None = None) -> list[Any]:
    marks = {smoke: [pytest.mark.smoke]}
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks.get(page, []))
        for page in pages
    ]


def shell_script(page: Path, directory: Path) -> str:
    """All commands of a page; each block's output comes after a line with its number."""
    parts = ["set -euo pipefail"]
    for number, block in enumerate(blocks(page)):
        parts.append(f"echo; echo '<<block {number}>>'")
        if block.mark == "bash":
            parts.append(block.text)
        elif block.mark == "python":
            (directory / f"block_{number}.py").write_text(block.text)
            parts.append(f"python {directory}/block_{number}.py")
    return "\n".join(parts)


def outputs(
    page: Path, tmp_path: Path, programs: str = os.path.dirname(sys.executable)
) -> dict[int, str]:
    """Runs a page; returns what each of its blocks printed, by number."""
    copy, scripts = tmp_path / "checkout", tmp_path / "scripts"
    copy.mkdir(parents=True)
    scripts.mkdir()
    for name in () if page in {README, TUTORIAL} else COPIED:
        if (ROOT / name).is_dir():
            # pages run scripts of their own, which the project's allowlist does not have
            no_policy = shutil.ignore_patterns("lllaunch.yaml")
            shutil.copytree(ROOT / name, copy / name, ignore=no_policy)
        else:
            shutil.copy(ROOT / name, copy / name)
    path = os.pathsep.join([programs, os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-c", shell_script(page, scripts)],
        cwd=copy,
        # torchrun leaves a directory of logs behind
        env=environment() | {"PATH": path, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    parts = re.split(r"^<<block (\d+)>>$", ended.stdout, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def alike(line: str) -> str:
    """A line without what differs from run to run, or from machine to machine."""
    # whether a worker notices the loss of another before it is told to end is a race
    line = re.sub(r"(ended by the launcher|failed .* after the root cause).*", "fate", line)
    line = re.sub(r"/[\w./-]+/(?=checkout/|site-packages/|[\w-]+\.py)", "", line)
    line = re.sub(r"outputs/[\d/-]+|multirun/[\d/-]+", "outputs/", line)
    line = re.sub(r"\d+ (min|h) (?=\d+ (s|min)\b)", "", line)
    line = re.sub(r"\d+(\.\d+)?( (ms|s|min)\b)?", "0", line)
    return " ".join(line.split())


def missing_lines(shown: str, printed: str) -> Iterator[str]:
    """Lines of ``shown`` that do not come, in order, in ``printed``."""
    # how sure it is depends on whether the kernel has killed anything on this machine meanwhile,
    # as it does in other tests
    shown, printed = (
        re.sub(r"^( *Why) \(.*?\n\n", r"\1\n\n", text, flags=re.MULTILINE | re.DOTALL)
        for text in (shown, printed)
    )
    left = iter([alike(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = alike(line)
        if wanted not in {"", "..."} and wanted not in left:
            yield line


# the README is what everybody tries first
@pytest.mark.parametrize("page", names([page for page in PAGES if runs(page)], smoke=README))
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    for pattern, packages in NEEDED.items():
        if re.search(pattern, shell_script(page, tmp_path)):
            for package in packages:
                pytest.importorskip(package)
    printed = outputs(page, tmp_path)
    found = blocks(page)
    for number, block in enumerate(found):
        if block.mark == "text output":
            assert found[number - 1].mark in {"bash", "python"}
            text = printed[number - 1]
            assert not list(missing_lines(block.text, text)), text


@pytest.mark.parametrize("page", names(PAGES))
def test_blocks_of_data_can_be_read(page: Path) -> None:
    for block in blocks(page):
        assert block.mark, f"a block without a mark:\n{block.text}"
        if block.mark == "yaml":
            assert yaml.safe_load(block.text) is not None
        elif block.mark == "json":
            assert json.loads(block.text) is not None


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text())
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.smoke
@pytest.mark.parametrize("page", names(PAGES))
def test_links_lead_somewhere_and_pictures_are_told_in_words(page: Path) -> None:
    assert not list(broken_links(page))
    for words, target in PICTURE.findall(FENCE.sub("", page.read_text())):
        assert (page.parent / target).is_file(), target
        assert len(words) > 20, target


def test_every_picture_is_on_a_page_and_small() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{picture.name})" in pages, picture.name
        assert picture.stat().st_size < 250_000, picture.name


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [README]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        targets = LINK.findall(FENCE.sub("", page.read_text()))
        left += [(page.parent / each.partition("#")[0]).resolve() for each in targets]
    assert set(PAGES) <= reached


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package)
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=environment() | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=SECONDS,
        check=True,
    )
    files = [path for path in tmp_path.rglob("*") if path.suffix in {".html", ".css"}]
    text = "".join(path.read_text() for path in files)
    assert text.count('class="mermaid"') == 0  # its script would come from elsewhere
    assert (
        re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?https?:[^>]*", text) == []
    )
    assert re.findall(r"url\([\"']?https?:", text) == []
    assert '<h2 id="check">check' in text
