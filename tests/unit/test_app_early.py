from __future__ import annotations

import pytest

from lllaunch.app import early
from lllaunch.app.search_path import config_dir_of


@pytest.mark.parametrize(
    "argv",
    [
        ["--cfg", "job"],
        ["+exp=x", "-c", "job"],
        ["--info"],
        ["--info=searchpath"],
        ["--help"],
        ["--hydra-help"],
        ["--version"],
        ["-sc", "install=bash"],
    ],
)
def test_a_command_line_that_only_asks_starts_no_spawner(argv: list[str]) -> None:
    assert early.only_asks(argv)
    assert early.prestarted(argv) is None


@pytest.mark.parametrize("argv", [[], ["+exp=x"], ["-m", "a=1,2"], ["--config-name", "c"]])
def test_any_other_command_line_runs_something(argv: list[str]) -> None:
    assert not early.only_asks(argv)


def test_without_room_for_a_process_it_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("lllaunch.spawner.client.Spawner.prestart", full)
    assert early.prestarted([]) is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["+exp=x"], None),
        (["--config-dir", "a b"], "a b"),
        (["--config-dir=a=b"], "a=b"),
        (["-cd", "x", "+exp=x"], "x"),
        (["-cd=x"], "x"),
        (["-cd", "x", "--config-dir", "y"], "y"),
        (["--config-dir"], None),
    ],
)
def test_the_config_dir_is_read_from_the_command_line(
    argv: list[str], expected: str | None
) -> None:
    assert config_dir_of(argv) == expected
