"""Whether a checkpoint was written between two looks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lllaunch.run.execute import Checkpoint


def changed(path: Path, most: int = 100) -> Checkpoint:
    checkpoint = Checkpoint(str(path), most)
    checkpoint.look()
    return checkpoint


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ckpt" / "step_1").mkdir(parents=True)
    (tmp_path / "ckpt" / "step_1" / "model.pt").write_text("1")
    (tmp_path / "ckpt" / "latest").symlink_to("step_1")
    return tmp_path / "ckpt"


def test_nothing_has_changed(place: Path) -> None:
    assert changed(place).has_changed() is False
    assert changed(place / "step_1/model.pt").has_changed() is False
    assert changed(place / "nowhere").has_changed() is False


def test_a_file_that_was_written(place: Path) -> None:
    path = place / "step_1/model.pt"
    checkpoints = [changed(each) for each in (place, path, place / "latest")]
    path.write_text("22")
    assert all(each.has_changed() for each in checkpoints)


def test_a_file_that_was_replaced_by_one_like_it(place: Path) -> None:
    path = place / "step_1/model.pt"
    checkpoint, times = changed(place), path.stat()
    (place.parent / "new").write_text("2")
    os.utime(place.parent / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(place.parent / "new", path)
    assert checkpoint.has_changed()


def test_a_new_file_deep_below(place: Path) -> None:
    checkpoint = changed(place)
    (place / "step_2/shards").mkdir(parents=True)
    assert checkpoint.has_changed() is False, "an empty directory is none yet"
    (place / "step_2/shards/0.bin").write_text("x")
    assert checkpoint.has_changed()


def test_a_link_that_leads_elsewhere(place: Path) -> None:
    (place / "step_0").mkdir()
    checkpoint, through = changed(place), changed(place / "latest")
    (place / "latest").unlink()
    (place / "latest").symlink_to("step_0")
    assert checkpoint.has_changed()
    assert through.has_changed()


def test_what_was_removed_is_no_progress(place: Path) -> None:
    (place / "step_1/model.pt.tmp").write_text("half")
    checkpoint = changed(place)
    (place / "step_1/model.pt.tmp").unlink()
    (place / "latest").unlink()
    assert checkpoint.has_changed() is False


def test_a_link_that_leads_round_in_a_circle_ends(place: Path) -> None:
    (place / "step_1/up").symlink_to("..")
    checkpoint = changed(place)
    assert checkpoint.has_changed() is False
    (place / "step_1/more.pt").write_text("")
    assert checkpoint.has_changed()


def test_what_is_newer_than_all_that_was_seen_of_many_counts(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.pt").write_text("")
    checkpoint = changed(tmp_path, most=5)
    assert checkpoint.has_changed() is None
    for path in tmp_path.iterdir():
        path.unlink()
    # longer than the clock of a file system takes between two of its moments
    time.sleep(0.05)
    (tmp_path / "new.pt").write_text("")
    assert checkpoint.has_changed()
