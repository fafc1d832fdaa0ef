"""What Hydra and OmegaConf say where nothing could be composed, in words of the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from lllaunch.app.compose import ComposeFailed, Composition, ConfigRequest


@pytest.fixture(autouse=True)
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/exp").mkdir(parents=True)
    return tmp_path / "conf/exp/a.yaml"


def message(*overrides: str) -> str:
    with pytest.raises(ComposeFailed) as error:
        Composition(ConfigRequest(("+exp=a", *overrides))).compose()
    return str(error.value)


def test_a_node_that_refers_to_itself_is_named_first(experiment: Path) -> None:
    experiment.write_text("# @package _global_\nlaunch: ${launch}\n")
    assert message() == "launch: expected a value, got a reference that leads back to launch"


@pytest.mark.parametrize(
    ("override", "told", "better"),
    [
        ("params.wd=[1,2]", "no such key in the config; to add it", "+params.wd=[1,2]"),
        ("+params.lr=2", "the config has that key already; to override it", "params.lr=2"),
    ],
)
def test_how_to_add_a_key_or_to_override_it_is_told(
    override: str, told: str, better: str, experiment: Path
) -> None:
    experiment.write_text("# @package _global_\nparams: {lr: 1}\n")
    assert message(override) == f"{better.strip('+').partition('=')[0]}: {told}: {better}"
    composed = Composition(ConfigRequest(("+exp=a", better)))
    composed.compose()
