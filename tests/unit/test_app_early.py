from __future__ import annotations

from pathlib import Path

import pytest

from lllaunch.app.command_line import only_asks, prestarted
from lllaunch.app.planning import hydra_words


@pytest.mark.parametrize("words", ["--cfg job", "--info", "--help", "-sc install=bash"])
def test_a_command_line_that_only_asks_starts_no_spawner(words: str) -> None:
    assert only_asks(words.split())
    with prestarted(words.split()) as spawner:
        assert spawner is None
    assert not only_asks(["-m", "a=1,2", "--config-name", "c"])


def test_without_room_for_a_process_it_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("lllaunch.spawner.client.Spawner.prestart", full)
    with prestarted([]) as spawner:
        assert spawner is None


def test_the_config_dir_is_read_from_the_command_line() -> None:
    assert hydra_words(["--config-dir", "a b"])[1] == "a b"
    assert hydra_words(["-cd", "x", "--config-dir", "y", "+exp=x"])[1] == "y"
    assert hydra_words(["--config-dir"])[1] is None


def test_config_path_counts_from_where_the_command_was_given() -> None:
    Path("mine").mkdir()
    mine = str(Path.cwd() / "mine")
    assert hydra_words(["--config-path", "mine", "a=1"])[0] == ["--config-path", mine, "a=1"]
    for other in ("pkg://mine", "nowhere", "a=1"):
        assert hydra_words(["-cp", other])[0] == ["-cp", other]
