"""Runs the plan of a run again: its plan.yaml takes the place of what was composed for it.

A plan.yaml is a config that comes to the same plan wherever the project is. The rest of the first
run's config and what of Hydra's node bears on the job (variables, working directory, logging,
callbacks) are taken from ``.hydra``, if that is there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.app import Jobs, run
from lllaunch.app.boundary import reason_of
from lllaunch.app.configs import AGAIN, EXPERIMENTS, PRIMARY, unlocked
from lllaunch.config.document import parse, read_text
from lllaunch.config.plan import config_of, read_plan
from lllaunch.config.tree import value_at
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.secret_names import redacted_overrides

if TYPE_CHECKING:
    from lllaunch.app.own_worker import UserFunction
    from lllaunch.run.submission import BatchJob
    from lllaunch.spawner.client import Spawner

PLAN = "plan.yaml"
_CONFIG, _HYDRA = ".hydra/config.yaml", ".hydra/hydra.yaml"
# What of Hydra's node bears on the job, and not on where and how it is started.
_KEPT = ("callbacks", "hydra_logging", "job_logging", "job.env_set", "job.chdir")
_OURS = "lllaunch.conf"


class RerunRequest(NamedTuple):
    """What is to be run again."""

    path: str
    # plain data, ``launch`` with the node under it, and ``cluster`` if it went to one
    plan: Mapping[str, Any]
    config: Mapping[Any, Any]  # the primary config of the new run
    cwd: str  # where the first run was started; empty if nothing says
    function: UserFunction | None = None  # what workers call, if the plan does not say it


def read_again(directory: str) -> RerunRequest:
    """Return what a run has left; a `ConfigError` if it has no plan, or is of a user's own app."""
    return _read_plan(directory, expect_named=True)


def read_submitted(directory: str) -> RerunRequest:
    """Return what was submitted from a directory, to be run there, or raise `ConfigError`."""
    from lllaunch.app.batch import read_function  # noqa: PLC0415 - of batch jobs only

    again, function = _read_plan(directory, expect_named=False), read_function(directory)
    # what looks like an interpolation in it is none; what of Hydra's the submission has written
    # stays
    run = {"run": {"dir": directory.replace("${", "\\${")}, "output_subdir": None}
    launch = dict(again.config["launch"])
    for key in ("entrypoint", "args") if function is not None else ():
        # the plan names a function of a user's own app
        launch.pop(key, None)
    config = {**again.config, "hydra": {**again.config["hydra"], **run}, "launch": launch}
    return again._replace(config=config, function=function)


def _read_plan(directory: str, *, expect_named: bool) -> RerunRequest:
    path = os.path.join(directory, PLAN)
    plan = read_plan(path)
    rest, hydra = (_read(os.path.join(directory, name)) for name in (_CONFIG, _HYDRA))

    def former(key: str) -> Any:
        # anybody may have written it
        return value_at(hydra, ["hydra", *key.split(".")])

    if expect_named:
        _expect_ours(directory, former, plan["launch"])
    # what the run was called in review; the primary config of the new one has no name
    name = former(f"runtime.choices.{EXPERIMENTS}") or former("job.config_name")
    named = isinstance(name, str) and name not in {PRIMARY, AGAIN}
    kept: dict[str, Any] = {"runtime": {"choices": {EXPERIMENTS: name if named else None}}}
    for key in _KEPT:
        above, _, last = key.rpartition(".")
        if (value := former(key)) is not None:
            (kept.setdefault(above, {}) if above else kept)[last] = value
    locked = value_at(rest, ["launch", "locked"]) or False
    # what the plan does not say of it is no part of the run
    rest.pop("cluster", None)
    config = {**rest, **config_of(plan), "hydra": kept}
    config["launch"]["locked"] = locked
    return RerunRequest(path, plan, config, str(former("runtime.cwd") or ""))


def run_again(
    again: RerunRequest,
    spawner: Spawner | None,
    batch: BatchJob | None = None,
    *,
    quiet: bool = False,
) -> int:
    """Run it, with the overrides of ``sys.argv``, and return the exit code."""
    try:
        ConfigStore.instance().store(AGAIN, dict(again.config), provider="lllaunch")
    except (OmegaConfBaseException, RecursionError) as error:
        message = f"or what is beside it is no config: {reason_of(error)}"
        raise ConfigError((Diagnostic("plan", again.path, "", message),)) from None
    return run(Jobs(spawner, again=again, batch=batch, quiet=quiet), AGAIN)


def _read(path: str) -> Any:
    if not os.path.lexists(path):
        return {}
    text = read_text(path)
    # OmegaConf writes paths and bytes with tags, which its own reader knows
    parse(text, path, as_hydra=True)
    try:
        data: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        message = f"cannot be read: {reason_of(error)}"
        raise ConfigError((Diagnostic("plan", path, "", message),)) from None
    return data if isinstance(data, dict) else {}


def _expect_ours(directory: str, former: Callable[[str], Any], launch: Mapping[Any, Any]) -> None:
    """Raises if a run was of a user's own app, whose function no plan can name."""
    sources = former("runtime.config_sources")
    given = sources if isinstance(sources, list) else []
    paths = [source.get("path") for source in given if isinstance(source, dict)]
    if not paths or _OURS in paths:
        return
    # how the plan calls the function: train.py:main, package.module:main
    script = str(launch.get("entrypoint", "")).rpartition(":")[0]
    words = ["python", script] if script.endswith(".py") else ["python", "-m", script]
    texts = [str(text) for kind in ("hydra", "task") for text in former(f"overrides.{kind}") or ()]
    command = shlex.join([*words, *unlocked(redacted_overrides(texts))])
    message = f"was run by an app of its own, {str(former('job.name'))!r}"
    hint = f"\n  to run it again: {command}"
    raise ConfigError((Diagnostic("own-app", "RUN", repr(directory), message, hint),))
