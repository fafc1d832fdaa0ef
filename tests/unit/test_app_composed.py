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
from hypothesis import given
from hypothesis import strategies as st
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
