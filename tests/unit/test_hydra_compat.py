"""Private names of Hydra's and OmegaConf's: all in a module for each, and all there."""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import hydra.core.utils
import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from lllaunch import hydra_compat
from lllaunch.hydra_compat import (
    BoundedRepository,
    ConfigLoaderImpl,
    QuietReturn,
    Seam,
    WatchedLoader,
    create_automatic_config_search_path,
    keeping_lists,
    replaced,
)

ROOT = Path(__file__).parents[2]
COMPAT = [ROOT / "lllaunch" / f"{name}_compat.py" for name in ("hydra", "config/omegaconf")]

PRIVATE_MODULE = re.compile(r"hydra\._|omegaconf\._|omegaconf\.basecontainer")


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.name}:" for alias in node.names)


def own_names(tree: ast.AST) -> set[str]:
    """Names with an underscore that a module makes itself."""
    nodes = [*ast.walk(tree)]
    made = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stored = (node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
    return made | {getattr(node, "id", None) or getattr(node, "attr", "") for node in stored}


def attributes_of(tree: ast.AST) -> set[str]:
    """Names with one underscore that are looked up in an object."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr)
    }


def test_each_place_of_hydras_in_which_others_stand_is_there() -> None:
    names = [seam.value for seam in Seam]
    names += [
        target.rpartition(".")[::2]
        for target in (hydra_compat.BASIC_LAUNCHER, hydra_compat.BASIC_SWEEPER)
    ]
    for module, name in names:
        assert getattr(importlib.import_module(module), name) is not None


def test_methods_that_are_overridden_take_what_hydra_gives_them() -> None:
    own = hydra_compat.WatchedLoader._process_config_searchpath
    theirs = hydra_compat.ConfigLoaderImpl._process_config_searchpath
    assert [*inspect.signature(own).parameters] == [*inspect.signature(theirs).parameters]


@pytest.mark.slow
def test_no_other_module_uses_a_private_name_of_theirs() -> None:
    theirs = set()
    for tree in (ast.parse(path.read_text()) for path in COMPAT):
        names = (name.partition(":") for name in imports_of(tree) if PRIVATE_MODULE.match(name))
        theirs |= attributes_of(tree) | {name for *_, name in names}
    theirs -= {"_expect"}
    private = {name for name in theirs if name.startswith("_")}
    assert len(private) > 10
    wrong = []
    for package in ("lllaunch", "hydra_plugins"):
        for path in (ROOT / package).rglob("*.py"):
            if path in COMPAT:
                continue
            text = path.read_text()
            if "hydra" not in text and "omegaconf" not in text:
                continue
            tree = ast.parse(text)
            used = {name for name in imports_of(tree) if PRIVATE_MODULE.match(name)}
            used |= attributes_of(tree) & private - own_names(tree)
            used |= set(re.findall(r"""["']hydra\._[\w.]*""", text))
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(used)]
    assert wrong == []


def test_a_pickled_return_names_no_class_of_ours() -> None:
    returned = QuietReturn(["lr=1"], task_name="app", status=JobStatus.COMPLETED, _return_value=3)
    data = pickle.dumps(returned, protocol=4)
    assert b"lllaunch" not in data
    read = pickle.loads(data)
    assert type(read) is hydra.core.utils.JobReturn
    assert (read.overrides, read.return_value) == (["lr=1"], 3)


def test_the_plugin_makes_no_config_before_an_app_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("each Hydra app of the machine would pay for this")

    with monkeypatch.context() as patched:
        patched.setattr(OmegaConf, "create", fail)
        patched.setattr(OmegaConf, "structured", fail)
        for name in ("launcher", "sweeper"):
            spec = importlib.util.find_spec(f"hydra_plugins.lllaunch_launcher.{name}")
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    store = ConfigStore.instance()
    assert store.load("hydra/launcher/lllaunch.yaml").node.retries.hang == 1
    assert store.load("hydra/launcher/lllaunch_slurm.yaml").node.cluster.backend == "slurm"
    assert store.load("hydra/sweeper/lllaunch.yaml").node.params is None


def test_jobs_are_composed_of_what_was_read_first(tmp_path: Path) -> None:
    (tmp_path / "main.yaml").write_text("a: {b: 1}\n")
    search = ConfigSearchPathImpl()
    search.append("test", f"file://{tmp_path}")
    read: list[str] = []
    first = hydra_compat.BoundedRepository(search, read.append, lambda _: None)
    for repository in (first, copy.deepcopy(first)):
        found = repository.load_config("main")
        assert found is not None
        assert found.config == {"a": {"b": 1}}
        # as Hydra does when it merges, and a user who edits while a sweep goes on
        found.config.a.b = 2
        (tmp_path / "main.yaml").write_text("a: {b: 3}\n")
    assert read == [str(tmp_path / "main.yaml")]


# What is kept while a sweep composes its jobs


def test_what_is_kept_of_one_job_makes_no_other_one_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "app": "defaults: [db: a, opt@net: sgd, _self_]\nseed: 0\nnames: [x]",
        "db/a": "kind: a\nport: 1",
        "db/b": "defaults: [/opt@extra: adam]\nkind: b\nport: 2",
        "opt/sgd": "rate: ${..seed}",
        "opt/adam": "rate: 2",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    read: list[object] = []
    own = ConfigLoaderImpl._load_single_config

    def counting(self: ConfigLoaderImpl, default: object, repo: object) -> object:
        read.append(default)
        return own(self, default, repo)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfigLoaderImpl, "_load_single_config", counting)
    search = create_automatic_config_search_path(None, None, str(tmp_path))
    ours, theirs = WatchedLoader(search), ConfigLoaderImpl(search)
    ours.repository = BoundedRepository(search, lambda _: None, lambda _: None)
    new = ["seed=1 names=[y]", "db=b seed=2", "~db", "db=b opt@net=adam"]
    # their groups have been chosen before
    known = ["seed=3", "+new=1 ~db", "++seed=4 db=b"]
    for line in [*new[:3], *known, *new[3:], *known]:
        given = line.split()
        with replaced({Seam.LISTS: keeping_lists}):
            read.clear()
            found = ours.load_configuration("app", given, RunMode.RUN)
        assert bool(read) == (line in new), line
        wanted = theirs.load_configuration("app", given, RunMode.RUN)
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(wanted)
