from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hydra.types import RunMode
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.app.planning import install
from lllaunch.config.document import lines_of
from lllaunch.config.origins import Origin, Origins, origins

CONF = Path(__file__).resolve().parents[2] / "conf"


@pytest.fixture(autouse=True)
def _hydra() -> None:
    """The schema, as `python -m lllaunch` installs it."""
    version.setbase("1.3")
    install()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf"


def write(directory: Path, **files: str) -> None:
    """Writes configs; two underscores in a name are a slash."""
    for name, text in files.items():
        path = directory / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))


def loader_of(directory: Path | str) -> ConfigLoaderImpl:
    return ConfigLoaderImpl(create_config_search_path(str(directory)))


def found(directory: Path | str, name: str | None, *overrides: str, **options: Any) -> Origins:
    return origins(loader_of(directory), name, overrides, **options)


def places(found: Origins, key: str) -> list[str]:
    """Kind and place of a key's origin, after those that it won over."""
    origin = found.of(key)
    assert origin is not None, key
    return [f"{each.kind} {each.place}" for each in (*origin.overridden, origin)]


SCHEMA = "schema structured://_lllaunch_schema"

# ---- this repository's own experiments


@pytest.fixture
def ours(here: Path) -> Path:
    shutil.copytree(CONF, here, dirs_exist_ok=True)
    write(
        here,
        exp__resnet="""
        # @package _global_
        # A small ResNet.
        launch:
          entrypoint: examples/resnet/train.py
          args:
            epochs: ${params.epochs}
            lr: ${params.lr}
            checkpoint: ${hydra:runtime.output_dir}/checkpoint.pt
          nproc: 2
          preload: [torch]

        params: {epochs: 3, lr: 0.1}
        """,
        exp__restart="""
        # @package _global_
        defaults:
          - resnet
          - _self_

        launch:
          entrypoint: examples/resnet/unlucky.py
          restart:
            on: [hang, oom]
        """,
    )
    return here


def test_a_file_an_override_and_the_schema_are_told_apart(ours: Path) -> None:
    one = found(ours, None, "+exp=resnet", "params.lr=0.2", "launch.role=trainer")
    assert places(one, "launch.nproc") == [SCHEMA, "file conf/exp/resnet.yaml:9"]
    assert places(one, "launch.role") == [SCHEMA, "override launch.role=trainer"]
    assert places(one, "launch.tee") == [SCHEMA]
    assert places(one, "launch") == [SCHEMA, "file conf/exp/resnet.yaml:3"]
    assert places(one, "launch.preload[0]") == ["file conf/exp/resnet.yaml:10"]
    assert places(one, "params.lr") == ["file conf/exp/resnet.yaml:12", "override params.lr=0.2"]
    assert one.of("launch.no_such_key") is None
    assert one.of("nowhere") is None


def test_an_origin_says_which_choice_brought_the_file(ours: Path) -> None:
    one = found(ours, None, "+exp=restart")
    entrypoint = one.of("launch.entrypoint")
    assert entrypoint is not None
    assert (entrypoint.place, entrypoint.group) == ("conf/exp/restart.yaml:7", "exp=restart")
    assert [each.where for each in entrypoint.overridden] == [
        *("structured://_lllaunch_schema", "conf/exp/resnet.yaml"),
    ]
    nproc = one.of("launch.nproc")
    assert nproc is not None
    assert (nproc.where, nproc.group) == ("conf/exp/resnet.yaml", "exp=restart")


def test_a_key_that_yaml_reads_as_a_boolean_is_found_by_its_name(ours: Path) -> None:
    one = found(ours, None, "+exp=restart")
    for key in ("launch.restart.on", "launch.restart.True", "launch.restart.true"):
        assert places(one, key) == ["file conf/exp/restart.yaml:9"]


def test_a_chain_follows_what_the_text_refers_to(ours: Path) -> None:
    one = found(ours, None, "+exp=resnet", "params.lr=0.2")
    chain = one.chain("launch.args.lr")
    assert [(link.key, link.origin.place) for link in chain] == [
        ("launch.args.lr", "conf/exp/resnet.yaml:7"),
        ("params.lr", "params.lr=0.2"),
    ]
    checkpoint = one.chain("launch.args.checkpoint")
    assert [(link.key, link.origin.kind) for link in checkpoint] == [
        ("launch.args.checkpoint", "file"),
        ("hydra.runtime.output_dir", "hydra"),
    ]
    assert one.chain("nowhere") == ()


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "exp").glob("*.yaml")))
def test_every_key_of_our_experiments_has_an_origin(ours: Path, name: str) -> None:
    one = found(ours, None, f"+exp={name}", "launch.nproc=5")
    kinds = [origin.kind for origin in map(one.of, one.keys()) if origin is not None]
    assert len(kinds) == len(list(one.keys())) > 100
    assert "unknown" not in kinds


# ---- Hydra's ways of composing


def test_an_origin_names_the_package_of_its_group(here: Path) -> None:
    write(
        here,
        main="defaults: [db: one, db@backup: one, db@_global_.deep.er: two, _self_]\n",
        db__one="host: a\n",
        db__two="host: b\n",
        db__three="# @package _global_.there\nhost: c\n",
    )
    one = found(here, "main", "db@backup=two", "+db@more.of=three")
    groups = {key: one.of(f"{key}.host") for key in ("db", "backup", "deep.er", "more.of")}
    assert {key: origin.group for key, origin in groups.items() if origin} == {
        "db": "db=one",
        "backup": "db@backup=two",
        "deep.er": "db@deep.er=two",
        "more.of": "db@more.of=three",
    }
    assert places(found(here, "main", "db=three"), "there.host") == ["file conf/db/three.yaml:2"]


def test_below_what_is_merged_into_a_reference_only_that_is_known(here: Path) -> None:
    write(here, main="defaults: [b, _self_]\na: {x: 2}\n", b="a: ${b}\nb: {x: 1, y: {z: 1}}\n")
    one = found(here, "main")
    assert places(one, "a") == ["file conf/b.yaml:1", "file conf/main.yaml:2"]
    assert places(one, "a.x") == ["file conf/main.yaml:2"]
    assert places(one, "a.y.z") == ["unknown "]
    assert places(one, "b.x") == ["file conf/b.yaml:2"]


def test_the_origin_below_a_reference_is_that_of_the_reference(here: Path) -> None:
    write(here, main="a: ${b}\nb:\n  x: ${.y}\n  y: ${c} and ${oc.select:d,0}\nc: 1\nd: ${a}\n")
    one = found(here, "main")
    assert places(one, "a.x") == ["file conf/main.yaml:1"]
    assert [link.key for link in one.chain("a.x")] == ["a", "b.x", "b.y", "c", "d"]


# ---- other sources


@dataclass
class Db:
    host: str = "localhost"
    port: int = 1
    name: str = "???"


def test_structured_configs(here: Path) -> None:
    ConfigStore.instance().store(group="stored", name="db", node=Db)
    write(here, main="defaults: [stored@db: db, _self_]\ndb: {port: '7', name: n}\n")
    one = found(here, "main", "db.name=other")
    stored = "schema structured://stored/db"
    assert places(one, "db.host") == [stored]
    assert places(one, "db.port") == [stored, "file conf/main.yaml:2"]
    expected = [stored, "file conf/main.yaml:2", "override db.name=other"]
    assert places(one, "db.name") == expected


def test_configs_in_packages_and_elsewhere(here: Path, tmp_path: Path) -> None:
    one = found("pkg://lllaunch.conf", "_lllaunch_app")
    assert places(one, "hydra.help.app_name")[-1].startswith(
        "package pkg://lllaunch.conf/_lllaunch_app.yaml:"
    )
    outside = tmp_path.parent / f"{tmp_path.name} elsewhere"
    outside.mkdir()
    write(outside, main="x: 1\n")
    assert places(found(outside, "main"), "x") == [f"file {outside}/main.yaml:1"]


# ---- what it must not do


def test_no_secret_is_in_it(here: Path) -> None:
    secret = "hf_Hunter2Hunter2Hunter2"
    write(
        here, main=f"api_key: {secret}\nlaunch: {{env: {{HF_TOKEN: {secret}}}}}\nother: {secret}\n"
    )
    one = found(here, "main", f"+my.password={secret}", f"+d={{token: {secret}}}")
    assert places(one, "my.password") == ["override +my.password=${oc.env:PASSWORD}"]
    assert secret not in repr(list(map(one.chain, one.keys())))
    assert secret not in repr(vars(one))


# ---- lines


def test_lines_of_anchors_and_merge_keys() -> None:
    text = """
        base: &base
          a: 1
          b: &list [1,
            2]
        one:
          <<: *base
          b: 3
        two: {<<: [{a: 5}, *base], c: *list}
        2: x
        'on': y
        on: z
        """
    lines = lines_of(textwrap.dedent(text).lstrip("\n"))
    assert lines.below("base").below("b").below(1).line == 4
    assert lines.below("one").below("a").line == 2
    assert lines.below("one").below("b").line == 7
    assert [lines.below("two").below(key).line for key in "abc"] == [8, 3, 8]
    assert lines.below("two").below("c").below(1).line == 4
    assert [lines.below(key).line for key in (2, "on", True, "no")] == [9, 10, 11, None]


# ---- all that Hydra may compose

# each V will be another text
values = st.recursive(
    st.sampled_from(["V", "V", "V", "???", None]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=6,
)
contents = st.dictionaries(st.sampled_from("abc"), values, max_size=3) | st.fixed_dictionaries(
    # Hydra refuses to merge lists and mappings, so they have keys of their own
    {"a": values, "l": st.sampled_from([["V", "V"], [{"a": "V"}, "V"]])}
)
headers = st.sampled_from(["", "", "# @package _global_\n", "# @package a.q\n"])
packages = st.sampled_from(["", "@a", "@a.b", "@_global_", "@_global_.c", "@_here_"])
changes = st.sampled_from(
    [
        *("++a=V", "++a.b.n=V", "++b={a: V, b: {c: V}}", "++c={}", "++n=null"),
        *("+a.n.n=[V, {a: V}]", "~a", "~b", "c=V", "+t@p=z", "+t@a.p=z", "g=x"),
    ]
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, str], list[str]]:
    """Texts of config files by their names (the primary one is ``top``), and overrides."""
    files = {}
    for name in ("top", "base", *(f"{group}__{option}" for group in "ghst" for option in "xyz")):
        entries: list[Any] = ["_self_"]
        if name == "top":
            # each config is there once: Hydra may change one that it has loaded, and use it again
            chosen = draw(st.lists(st.sampled_from("gh"), unique=True))
            options = st.sampled_from([*"xyz"])
            entries += [{f"/{group}{draw(packages)}": draw(options)} for group in chosen]
            entries = draw(st.permutations([*entries, f"base{draw(packages)}"]))
        elif name == "g__x":
            entries.append({f"/s{draw(packages)}": "x"})
        node = {"defaults": entries, **draw(contents)}
        files[name] = ("" if name == "top" else draw(headers)) + yaml.safe_dump(node)
    line = draw(st.lists(changes, max_size=4, unique=True))
    numbers = iter(range(100_000))

    def numbered(text: str) -> str:
        return re.sub("V", lambda _: f"v{next(numbers)}v", text)

    return {name: numbered(text) for name, text in files.items()}, [*map(numbered, line)]


def leaves(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict):
        for name, item in content.items():
            yield from leaves(item, f"{key}.{name}" if key else name)
    elif isinstance(content, list):
        for index, item in enumerate(content):
            yield from leaves(item, f"{key}[{index}]")
    else:
        yield key, content


def text_at(origin: Origin) -> str:
    if origin.line is None:
        return origin.where
    return Path(origin.where).read_text().splitlines()[origin.line - 1]


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    # without Phase.explain, which makes all examples slow
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(tree=trees())
def test_the_value_of_every_leaf_stands_where_its_origin_says(
    tree: tuple[dict[str, str], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files, line = tree
    directory = tmp_path_factory.mktemp("conf")
    write(directory, **files)
    loader = loader_of(directory)
    try:
        composed = loader.load_configuration("top", line, RunMode.RUN)
    except HydraException:
        assume(False)
    found = origins(loader, "top", line)
    content: Any = OmegaConf.to_container(composed, resolve=False)
    for key, value in leaves(content):
        if key.startswith(("hydra.", "launch.")):
            continue
        origin = found.of(key)
        assert origin is not None, key
        assert {each.kind for each in (origin, *origin.overridden)} <= {"file", "override"}
        shown = "null" if value is None else value
        assert shown in text_at(origin), (key, value, origin)
