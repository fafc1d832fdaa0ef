"""``console``: what is shown of a run or of a sweep, and how."""

from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.console import CONSOLE_KEYS, SYNONYMS, read_console
from lllaunch.config.fields import Findings
from lllaunch.config.schema import KEYS, defaults
from lllaunch.config.sweep import SweepSettings, sweep_settings
from lllaunch.errors import ConfigError
from lllaunch.spec import ConsolePolicy


def read(tree: Any) -> ConsolePolicy:
    findings = Findings()
    policy = read_console(tree, "launch.console", findings)
    findings.raise_if_any()
    return policy


def complaint(tree: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tree)
    return str(caught.value)


def test_the_schema_says_the_defaults() -> None:
    assert read(defaults()["console"]) == read(None) == read({}) == ConsolePolicy()
    assert tuple(defaults()["console"]) == CONSOLE_KEYS


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"live": True}, ConsolePolicy(live=True)),
        ({"live": False, "quiet": True}, ConsolePolicy(live=False, quiet=True)),
        ({"color": "always"}, ConsolePolicy(color="always")),
        ({"color": "never", "live": None}, ConsolePolicy(color="never")),
        ({"interval": "10m"}, ConsolePolicy(interval=600)),
        ({"interval": 1}, ConsolePolicy(interval=1)),
        ({"interval": None}, ConsolePolicy(interval=None)),
        ({"interval": False}, ConsolePolicy(interval=None)),
        (dict.fromkeys(("live", "color", "quiet")), ConsolePolicy()),
    ],
)
def test_what_is_said_holds(tree: Any, expected: ConsolePolicy) -> None:
    assert read(tree) == expected


MAPPING = ": expected a mapping of settings (live, color, quiet, interval), got "


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("quiet", f"{MAPPING}'quiet'; did you mean {{quiet: true}}? [type]"),
        (True, f"{MAPPING}true; did you mean {{live: true}}? [type]"),
        (
            {"live": "auto"},
            (
                ".live: expected true, false or null, got 'auto'; null is where there is a "
                "terminal for it [choice]"
            ),
        ),
        (
            {"live": "true"},
            ".live: expected true, false or null, got 'true'; write it without quotes [choice]",
        ),
        (
            {"color": "alwys"},
            ".color: expected always, never or null, got 'alwys'; did you mean 'always'? [choice]",
        ),
        (
            {"color": False},
            ".color: expected always, never or null, got false; did you mean 'never'? [choice]",
        ),
        (
            {"color": "auto"},
            (
                ".color: expected always, never or null, got 'auto'; null is for a terminal that "
                "has them [choice]"
            ),
        ),
        ({"quiet": 1}, ".quiet: expected true or false, got 1 [choice]"),
        (
            {"interval": 0.5},
            (
                ".interval: expected a duration of at least 1s, got 0.5; write null for no such "
                "lines [duration]"
            ),
        ),
        ({"colour": "never"}, ".colour: unknown setting; did you mean 'color'? [unknown-key]"),
        ({"liv": True}, ".liv: unknown setting; did you mean 'live'? [unknown-key]"),
    ],
)
def test_what_is_wrong_is_told_with_what_was_meant(tree: Any, expected: str) -> None:
    assert complaint(tree) == f"launch.console{expected}"


def test_all_that_is_wrong_is_told() -> None:
    assert len(complaint({"live": 1, "color": 1, "quiet": 1, "interval": "x"}).splitlines()) == 4


def test_synonyms_lead_to_what_there_is() -> None:
    meant = {each.removeprefix("launch.") for each in SYNONYMS.values()}
    assert meant <= {*CONSOLE_KEYS, *KEYS}
    assert not SYNONYMS.keys() & {*CONSOLE_KEYS}


def test_a_sweep_obeys_the_same() -> None:
    node = {"console": {"live": False, "color": "never"}}
    assert sweep_settings(node).console == ConsolePolicy(live=False, color="never")
    assert SweepSettings().console == ConsolePolicy()
    with pytest.raises(ConfigError, match=r"hydra.launcher.console.quiet: expected true or false"):
        sweep_settings({"console": {"quiet": "x"}})
