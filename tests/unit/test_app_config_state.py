from __future__ import annotations

import dataclasses
import itertools
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, setup_globals
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.own_worker import pack, settle, unpack
from lllaunch.app.planning import install
from lllaunch.errors import NotPicklable


@pytest.fixture(autouse=True)
def resolvers() -> None:
    setup_globals()
    count = itertools.count()
    OmegaConf.register_new_resolver("cached", lambda *_: next(count), use_cache=True)
    OmegaConf.register_new_resolver("counted", lambda *_: next(count))


def travelled(cfg: DictConfig) -> Any:
    return pickle.loads(pickle.dumps(cfg))


def test_cached_values_are_equal_wherever_the_config_is_unpickled() -> None:
    cfg = OmegaConf.create({"a": "${cached:x}", "deep": [{"b": "${cached:y}"}], "c": "${counted:}"})
    settle(cfg)
    first, second = travelled(cfg), travelled(cfg)
    assert first.a == second.a
    assert first.deep[0].b == second.deep[0].b
    # resolvers without a cache stay alive
    assert first.c != first.c


@pytest.fixture
def job() -> DictConfig:
    """A job's config, with Hydra's state as it is while the job runs."""
    whole = OmegaConf.create({"lr": 1, "name": "${hydra:job.name}"})
    whole.hydra = OmegaConf.structured(HydraConf)
    whole.hydra.job.name = "train"
    HydraConfig.instance().set_config(whole)
    JobRuntime.instance().set("name", "train")
    return OmegaConf.create({"lr": 1, "name": "${hydra:job.name}"})


def test_hydras_state_is_set_again_where_the_config_is_unpacked(job: DictConfig) -> None:
    data = pack(job)
    HydraConfig.instance().cfg = None
    JobRuntime.instance().set("name", "other")
    cfg = unpack(data)
    assert HydraConfig.get().job.name == "train"
    assert cfg.name == "train"
    assert JobRuntime.instance().get("name") == "train"


def test_what_pickle_does_not_find_by_its_name_travels_with_its_code(job: DictConfig) -> None:
    @dataclasses.dataclass
    class Local:
        lr: float = 0.5

    OmegaConf.register_new_resolver("made", lambda x: lambda y: x + y, use_cache=True)
    cfg = OmegaConf.create(
        {"local": Local, "typed": Job, "add": "${made:1}"}, flags={"allow_objects": True}
    )
    job.merge_with(OmegaConf.create({"lr": 2}))
    there: Any = unpack(pack(cfg))
    assert OmegaConf.to_object(there.local).lr == 0.5
    # what workers have themselves is not another class there
    assert type(OmegaConf.to_object(there.typed)) is Job


@dataclasses.dataclass
class Job:
    name: str = "x"


def test_a_task_can_compose_where_the_app_finds_its_configs(
    job: DictConfig, tmp_path: Path
) -> None:
    install()
    (tmp_path / "other.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        data = pack(job)
    assert not GlobalHydra.instance().is_initialized()
    unpack(data)
    try:
        found = compose("other", ["+b=2"])
    finally:
        GlobalHydra.instance().clear()
    assert (found.a, found.b) == (1, 2)


def test_an_object_that_cannot_be_pickled_is_told(job: DictConfig) -> None:
    unfit = OmegaConf.create({"f": threading.Lock()}, flags={"allow_objects": True})
    with pytest.raises(NotPicklable, match="the config cannot be pickled"):
        pack(unfit)
