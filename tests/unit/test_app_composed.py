"""Composing without running: what `python -m lllaunch` would compose, and nothing beside it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import version
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from support.verbs import hydra_put_back

from lllaunch.app.composed import ComposeFailed, Composition, ConfigRequest
from lllaunch.app.search_path import ConfDirectories
from lllaunch.review.refused import PlanRefused

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with hydra_put_back():
        yield


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files of the project, which is the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


# ---------------------------------------------------------------- the command line

words = st.text("ab=+~{}[],'\" -$", min_size=1, max_size=8).filter(
    lambda text: not text.startswith("-")
)
names = st.none() | st.text("ab/._", min_size=1, max_size=6)


@given(
    st.builds(ConfigRequest, st.lists(words, max_size=4).map(tuple), st.booleans(), *[names] * 3)
)
def test_a_command_comes_back_from_its_words(command: ConfigRequest) -> None:
    assert ConfigRequest.parse(command.words) == command


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "+exp=a", "--config-name", "mine", "x=1", "-cd", "there", "-cp", "path"],
        ["-cd", "there", "+exp=a", "-cp=path", "--config-name=mine", "x=1", "--multirun"],
        ["+exp=a", "x=1", "-cn", "mine", "-m", "--config-dir=there", "--config-path", "path"],
    ],
)
def test_flags_may_stand_anywhere(words: list[str]) -> None:
    found = ConfigRequest.parse(words)
    assert found == ConfigRequest(("+exp=a", "x=1"), True, "mine", "path", "there")


@pytest.mark.parametrize("words", [["--config-name"], ["--nothing"], ["-x"], ["--config-d", "a"]])
def test_words_that_are_no_command(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ConfigRequest.parse(words)


# ---------------------------------------------------------------- composing


def test_nothing_of_hydras_changes(write: Write, tmp_path: Path) -> None:
    write("conf/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    write("other/exp/b.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    Plugins.instance()
    before = facts()
    environ = dict(os.environ)
    with Composition(ConfigRequest(("+exp=b",), config_dir="other")) as composed:
        config = composed.compose(["+hydra.job.env_set={A: b}"])
        assert HydraConfig.get().runtime.cwd == str(tmp_path)
        assert composed.plan(config).entrypoint.text == "env"
        composed.origins()
    assert facts() == before
    with pytest.raises(ComposeFailed), Composition(ConfigRequest(("+exp=no",))) as composed:
        composed.compose()
    assert facts() == before
    with pytest.raises(ComposeFailed), Composition(ConfigRequest(config_dir="nowhere")):
        raise AssertionError
    assert facts() == before
    assert dict(os.environ) == environ


def facts() -> tuple[Any, ...]:
    runtime = JobRuntime.instance().conf.get("name")
    level = version.VersionBase.instance().version_base
    return HydraConfig.instance().cfg, runtime, level, ConfDirectories.config_dir


def test_directories_come_in_the_order_of_a_run(write: Write) -> None:
    for place, value in (("conf", 1), ("mine", 2), ("primary", 3)):
        write(f"{place}/which/a.yaml", f"value: {value}\n")
    write("conf/which/only.yaml", "value: 4\n")
    write("primary/main.yaml", "defaults: [which: a]\nmade: here\n")

    def composed(*overrides: str, **flags: str) -> Any:
        with Composition(ConfigRequest(overrides, **flags)) as found:  # type: ignore[arg-type]
            return found.compose()

    assert composed("+which=a").which.value == 1
    assert composed("+which=a", config_dir="mine").which.value == 2
    assert composed("+which=only", config_dir="mine").which.value == 4
    path = os.path.abspath("primary")
    found = composed(config_path=path, config_name="main")
    assert (found.which.value, found.made) == (3, "here")
    assert composed("which=only", config_path=path, config_name="main").which.value == 4
    assert found.launch.nproc is None  # the schema is under any primary config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+exp=no"], "no"),
        (["nothing=1"], "nothing"),
        (["a=[1"], "'[1'"),
        (["+a=${b}", "+exp=a", "hydra.run.dir=${a}"], "b"),
        (["+exp=cycle"], ""),
        (["+exp=broken"], ""),
    ],
)
def test_what_hydra_cannot_compose_is_one_error(
    write: Write, overrides: list[str], message: str
) -> None:
    write("conf/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    write(
        "conf/exp/cycle.yaml", "# @package _global_\na: ${b}\nb: ${a}\nhydra: {run: {dir: '${a}'}}"
    )
    write("conf/exp/broken.yaml", "a: [1\n")
    with (
        pytest.raises(ComposeFailed) as error,
        Composition(ConfigRequest(tuple(overrides))) as composed,
    ):
        composed.compose()
    assert message in str(error.value)
    assert "Traceback" not in str(error.value)
    assert error.value.exit_code == 1


def test_whether_it_is_a_sweep(write: Write) -> None:
    write("conf/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    write("conf/exp/s.yaml", "# @package _global_\nhydra: {mode: MULTIRUN}\n")
    for command, sweeps in (
        (ConfigRequest(("+exp=a",)), False),
        (ConfigRequest(("+exp=a",), multirun=True), True),
        (ConfigRequest(("+exp=s",)), True),
        (ConfigRequest(("+exp=a", "hydra.mode=MULTIRUN")), True),
        (ConfigRequest(("+exp=s", "hydra.mode=RUN")), False),
    ):
        with Composition(command) as composed:
            assert composed.is_sweep() is sweeps, command


def test_a_package_that_is_not_allowed_is_not_looked_in(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write("spying/__init__.py", "open('imported', 'w').close()\n")
    write("spying/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    write("conf/lllaunch.yaml", "allow: {}\n")
    command = ConfigRequest(("+exp=a", "hydra.searchpath=[pkg://spying]"))
    with Composition(command) as composed:
        for compose in (composed.compose, composed.origins, composed.is_sweep, composed.master):
            with pytest.raises(PlanRefused, match=r"allow\.searchpath"):
                compose()
    assert not Path("imported").exists()


def test_locks_are_no_group_to_choose_from(write: Write) -> None:
    write("conf/exp/a.yaml", "x: 1\n")
    write("conf/locks/a.yaml", "lock: 1\n")
    write("conf/exp/locks/b.yaml", "x: 1\n")
    with Composition(ConfigRequest()) as composed:
        assert "exp" in composed.loader.list_groups("")
        assert "locks" not in composed.loader.list_groups("")
        assert composed.loader.list_groups("exp") == ["locks"]


# ---------------------------------------------------------------- composed once, not twice

TREE = {
    "conf/config.yaml": "defaults: [{db: small}, _self_]\nlr: 1\nat: ${now:%Y}\n",
    "conf/choose.yaml": "defaults: [{db: '???'}, _self_]\nlr: 1\n",
    "conf/asks.yaml": "hydra: {mode: MULTIRUN}\nlr: 1\n",
    "conf/db/small.yaml": "size: 1\n",
    "conf/db/large.yaml": "size: 2\n",
}
RUN, SWEEP = "hydra.mode=RUN", "hydra.mode=MULTIRUN"


def fresh_and_kept(
    name: str, asked: list[str], more: list[str], mode: RunMode
) -> tuple[DictConfig, DictConfig, int]:
    """What Hydra composes, the same after a look at the mode, and how often it then composed."""
    with Composition(ConfigRequest()) as composed:
        loader, count = composed.loader, 0

        def compose(*args: Any) -> DictConfig:
            nonlocal count
            count += 1
            return type(loader)._compose(loader, *args)

        fresh = loader.load_configuration(name, [*asked, *more], mode)
        loader._compose = compose  # type: ignore[method-assign]
        loader.load_configuration(name, asked, RunMode.MULTIRUN, validate_sweep_overrides=False)
        return fresh, loader.load_configuration(name, [*asked, *more], mode), count


@pytest.mark.parametrize(
    ("name", "asked", "more", "mode", "count"),
    [
        ("config", [], [RUN], RunMode.RUN, 1),
        ("config", ["db=large", "+x=[1,2]", "hydra.job.chdir=true"], [RUN], RunMode.RUN, 1),
        ("config", ["lr=1,2", "db=small,large"], [SWEEP], RunMode.MULTIRUN, 1),
        ("config", [RUN, "lr=2"], [], RunMode.RUN, 1),
        ("asks", ["lr=2"], [], RunMode.MULTIRUN, 1),
        # what a run would not take
        ("choose", ["db=small,large"], [SWEEP], RunMode.MULTIRUN, 2),
        # another command line than that before
        ("config", ["lr=2"], ["lr=3"], RunMode.RUN, 2),
        ("config", ["lr=2"], [RUN, "lr=3"], RunMode.RUN, 2),
    ],
)
def test_what_was_composed_to_see_the_mode_is_what_is_used(
    write: Write, name: str, asked: list[str], more: list[str], mode: RunMode, count: int
) -> None:
    for file, text in TREE.items():
        write(file, text)
    fresh, kept, composed = fresh_and_kept(name, asked, more, mode)
    plain = [OmegaConf.to_container(each, resolve=False) for each in (kept, fresh)]
    assert plain[0] == plain[1]
    assert OmegaConf.to_yaml(kept) == OmegaConf.to_yaml(fresh)
    assert kept.hydra.mode is fresh.hydra.mode
    assert (OmegaConf.is_struct(kept), OmegaConf.is_readonly(kept.hydra)) == (True, False)
    assert composed == count


def test_a_sweep_that_was_composed_to_see_the_mode_is_no_run(write: Write) -> None:
    for file, text in TREE.items():
        write(file, text)
    with Composition(ConfigRequest()) as composed:
        load, asked = composed.loader.load_configuration, ["lr=1,2"]
        load("config", asked, RunMode.MULTIRUN, validate_sweep_overrides=False)
        with pytest.raises(ConfigCompositionException, match="Ambiguous value for argument"):
            load("config", [*asked, RUN], RunMode.RUN)
        # a group that nobody has chosen is none of a run's
        load("choose", [], RunMode.MULTIRUN, validate_sweep_overrides=False)
        with pytest.raises(ConfigCompositionException, match="You must specify 'db'"):
            load("choose", [RUN], RunMode.RUN)
