"""``console``: what is shown of a run or of a sweep, and how."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.config.kinds import CONSOLE
from lllaunch.config.schema import defaults
from lllaunch.config.sweep import SweepSettings, sweep_settings
from lllaunch.errors import ConfigError
from lllaunch.spec import ConsolePolicy
from tests.unit.launch_nodes import complaints, mistakes, spec_of


def console(tree: Any) -> ConsolePolicy:
    return spec_of({"console": tree}).console


def test_the_schema_says_the_defaults_of_the_console() -> None:
    assert console(defaults()["console"]) == console(None) == console({}) == ConsolePolicy()
    assert tuple(defaults()["console"]) == tuple(CONSOLE.fields)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"live": False, "quiet": True}, ConsolePolicy(live=False, quiet=True)),
        ({"color": "always"}, ConsolePolicy(color="always")),
        ({"color": "never", "live": None}, ConsolePolicy(color="never")),
        ({"interval": "10m"}, ConsolePolicy(interval=600)),
        ({"interval": None}, ConsolePolicy(interval=None)),
        ({"interval": False}, ConsolePolicy(interval=None)),
    ],
)
def test_what_is_said_of_the_console_holds(tree: Any, expected: ConsolePolicy) -> None:
    assert console(tree) == expected


MISTAKES = """
console: quiet
    launch.console: expected a mapping of settings (live, color, quiet, interval), got 'quiet'
    [type]
console: {live: auto}
    launch.console.live: expected true, false or null, got 'auto'; null is where there is a terminal
    for it [choice]
console: {color: false}
    launch.console.color: expected always, never or null, got false [choice]
console: {interval: 0.5}
    launch.console.interval: expected a duration of at least 1s, got 0.5; write null for no such
    lines [duration]
console: {colour: never}
    launch.console.colour: unknown setting; did you mean 'color'? [unknown-key]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: Any, told: str) -> None:
    assert complaints(node) == [told]


def test_a_sweep_has_a_console_as_well() -> None:
    cfg = OmegaConf.create({"hydra": {"launcher": {"console": {"live": False, "color": "never"}}}})
    assert sweep_settings(cfg).console == ConsolePolicy(live=False, color="never")
    assert SweepSettings().console == ConsolePolicy()
    cfg = OmegaConf.create({"hydra": {"launcher": {"console": {"quiet": "x"}}}})
    with pytest.raises(ConfigError, match=r"hydra.launcher.console.quiet: expected true or false"):
        sweep_settings(cfg)
