from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.own_worker import pack, unpack
from lllaunch.errors import NotPicklable


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
    assert unpack(data).lr == 1
    assert HydraConfig.get().job.name == "train"
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


def test_an_object_that_cannot_be_pickled_is_told(job: DictConfig) -> None:
    unfit = OmegaConf.create({"f": threading.Lock()}, flags={"allow_objects": True})
    with pytest.raises(NotPicklable, match="the config cannot be pickled"):
        pack(unfit)
