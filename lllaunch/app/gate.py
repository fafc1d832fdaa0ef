"""Before a run starts: is its plan the reviewed one, and does its project allow it?

Without a policy and without a lock everything may run, and this costs a look at a few directories.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lllaunch.app.search_path import AGAIN, DIRECTORY, PRIMARY
from lllaunch.review.places import locks_all, policy_path, tree_top

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import ListConfig

    from lllaunch.errors import Problem
    from lllaunch.review.lock import Lock
    from lllaunch.review.policy import Policy
    from lllaunch.review.refused import PlanRefused
    from lllaunch.spec import LaunchSpec

EXPERIMENTS = "exp"
"""The config group whose choice names a lock."""

_OURS = "LLLAUNCH_"


class JobOf(NamedTuple):
    """One job of a sweep.

    Attributes:
        overrides: of the job.
        master: what the sweep itself was composed to.
    """

    overrides: Sequence[str]
    master: DictConfig


def admit(
    spec: LaunchSpec, config: DictConfig, job: JobOf | None = None, *, users_own: bool = False
) -> None:
    """Lets a run start, or does not.

    Args:
        spec: the run.
        config: that it was decided from, whole.
        job: which one of which sweep it is, if it is of one.
        users_own: whether workers run a function of the user's own, which no lock knows.

    Raises:
        PlanRefused: it is not what was reviewed, or not what its project allows.
        ConfigError: a policy or a lock cannot be read.
    """
    expect_own_environment(config)
    locked = bool(spec.locked) or locks_all(os.environ)
    top = tree_top(spec.runtime_cwd)
    path = policy_path(top, os.environ)
    if path is None and not locked:
        return
    # most runs need none of these
    from lllaunch.review.allow import check  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    plain: Any = OmegaConf.to_container(config, resolve=False)
    problems = check(spec, plain, _policy(path), top, locked=locked)
    refused = PlanRefused(problems=tuple(problems))
    if locked:
        refused = _against_lock(spec, config, job, problems, users_own=users_own)
    if refused.problems or refused.changes:
        raise refused


def expect_own_environment(config: DictConfig) -> None:
    """Expects that a config leaves alone what lllaunch itself reads of the environment.

    Hydra sets ``hydra.job.env_set`` before a run starts, and so could name another policy.

    Args:
        config: whole.

    Raises:
        ConfigError: it does not.
    """
    node: Any = OmegaConf.select(config, "hydra.job.env_set", throw_on_resolution_failure=False)
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    ours = [name for name in names if name.startswith(_OURS)]
    if ours:
        from lllaunch.errors import ConfigError, Problem  # noqa: PLC0415 - as above

        expected = "may not be set by a config: lllaunch itself reads it"
        problems = [Problem(f"hydra.job.env_set.{name}", "", expected) for name in ours]
        raise ConfigError(tuple(problems))


def _policy(path: str | None) -> Policy | None:
    from lllaunch.review.policy import read_policy  # noqa: PLC0415 - as above

    return None if path is None else read_policy(shown(path))


def shown(path: str) -> str:
    """A path as its user would write it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _against_lock(
    spec: LaunchSpec,
    config: DictConfig,
    job: JobOf | None,
    problems: list[Problem],
    *,
    users_own: bool,
) -> PlanRefused:
    from lllaunch.errors import Problem  # noqa: PLC0415 - as above
    from lllaunch.review.lock import compare, renew_command  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    if users_own:
        expected = "is of an app of its own, and locks hold plans of python -m lllaunch"
        hint = "name the function as launch.entrypoint, or do not lock it"
        own = Problem("the function", repr(spec.entrypoint.text), expected, hint)
        return PlanRefused(problems=(*problems, own))
    lock = find_lock(spec, config)
    if isinstance(lock, str):
        expected = "is not there: nobody has reviewed this plan"
        missing = Problem(lock, "", expected)
        command = words_of(config) if job is None else ("-m", *words_of(job.master))
        return PlanRefused(problems=(*problems, missing), renew=renew_command(command))
    changes = compare(lock, spec, "" if job is None else job_name(job.overrides))
    return PlanRefused(lock.path, changes, tuple(problems), lock.renew if changes else "")


def find_lock(spec: LaunchSpec, config: DictConfig) -> Lock | str:
    """Returns the lock of a run, or the path where it would be.

    Raises:
        PlanRefused: somebody edited it, or the run has no name.
        ConfigError: it cannot be read.
    """
    from lllaunch.errors import Problem  # noqa: PLC0415 - as above
    from lllaunch.review.lock import read_lock  # noqa: PLC0415
    from lllaunch.review.names import lock_path  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    name = spec.locked if isinstance(spec.locked, str) else experiment_name(config)
    if not name:
        expected = "has no name that a lock could be found by"
        raise PlanRefused(problems=(Problem("the run", "", expected, "set launch.locked=NAME"),))
    path = lock_path(spec.runtime_cwd, name)
    told = os.path.relpath(path, spec.runtime_cwd)
    return replace(read_lock(path), path=told) if os.path.lexists(path) else told


def experiment_name(config: DictConfig) -> str:
    """Returns what a run is called in review: its choice of `EXPERIMENTS`, or its primary config.

    Args:
        config: whole.

    Returns:
        An empty string if there is neither.
    """
    choices: Any = OmegaConf.select(config, "hydra.runtime.choices")
    choice = choices.get(EXPERIMENTS) if isinstance(choices, DictConfig) else None
    if isinstance(choice, str) and choice:
        return choice
    name = OmegaConf.select(config, "hydra.job.config_name")
    return "" if name in {None, PRIMARY, AGAIN} else str(name)


def job_name(overrides: Sequence[str]) -> str:
    """Returns what the lock of a sweep calls a job."""
    from lllaunch.config.overrides import redacted_overrides  # noqa: PLC0415 - as above

    return shlex.join(redacted_overrides(overrides))


def words_of(config: DictConfig) -> tuple[str, ...]:
    """Returns flags and overrides that compose a config again, without secrets and locks.

    Args:
        config: whole.
    """
    from lllaunch.config.overrides import redacted_overrides  # noqa: PLC0415 - as above

    node: Any = config.hydra
    given = [*as_written(node.overrides.hydra), *as_written(node.overrides.task)]
    name = node.job.config_name
    flags = [] if name in {None, PRIMARY, AGAIN} else ["--config-name", str(name)]
    for source in node.runtime.config_sources:
        if source.provider == "command-line" and source.schema == "file":
            path = os.path.relpath(source.path, node.runtime.cwd)
            flags[:0] = ["--config-dir", path] if path != DIRECTORY else []
    return (*dict.fromkeys(flags), *unlocked(redacted_overrides(given)))


def as_written(overrides: ListConfig) -> list[str]:
    """Returns overrides with their interpolations, which a config that holds them would resolve.

    Args:
        overrides: such as ``hydra.overrides.task`` of a config.
    """
    found: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(map(str, found))


def unlocked(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Returns overrides without those that do not bear on the plan: whether and where it runs."""
    keys = ("launch.locked", "hydra.mode", "hydra.launcher.resume")
    return tuple(
        text
        for text in overrides
        if text.lstrip("+~").partition("=")[0] not in keys
        and not text.lstrip("+~").startswith(("hydra.run.", "hydra.sweep."))
    )


def asks_for_lock(config: DictConfig) -> bool:
    """Whether a config, or the environment, asks for the reviewed plan, in whatever words."""
    launch: Any = OmegaConf.select(config, "launch", throw_on_resolution_failure=False)
    # unresolved: an interpolation counts as yes until it is known
    node = launch._get_node("locked") if isinstance(launch, DictConfig) else None
    wanted = getattr(node, "_value", lambda: None)()
    return wanted not in (None, False) or locks_all(os.environ)
