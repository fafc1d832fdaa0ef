"""Which file `show` takes for the plan of a run."""

from __future__ import annotations

from pathlib import Path

from lllaunch.results.store import FoundDirectory, read_run
from lllaunch.verbs.show import read_shown


def _shown_plan(run: Path) -> str | None:
    found = FoundDirectory(str(run), "run", frozenset({"plan.yaml"}))
    entry, result = read_run(found)
    return read_shown(found, entry, result).plan


def test_the_plan_in_the_directory_of_the_run_is_shown(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("nproc: 2\n")

    assert _shown_plan(tmp_path) == "nproc: 2\n"


def test_a_link_to_a_file_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("nobody's business\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.yaml").symlink_to(tmp_path / "private")

    assert _shown_plan(run) is None
