"""Before a run starts: is its plan the reviewed one, and does its project allow it?

Without a policy and without a lock everything may run, and this costs a look at a few directories.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch.app.configs import experiment_name, job_name, words_of
from lllaunch.config.tree import shown_path
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.hydra_compat import own_node, raw_value
from lllaunch.review.paths import locks_all, policy_path, tree_top

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.review.lock import Lock
    from lllaunch.review.policy import Policy
    from lllaunch.review.refused import PlanRefused
    from lllaunch.spec import LaunchSpec

_OURS = "LLLAUNCH_"


class JobOf(NamedTuple):
    """One job of a sweep."""

    overrides: Sequence[str]
    master: DictConfig  # what the sweep itself was composed to
    admitted: str = ""  # hash of its plan when it was tried, and was the reviewed one


def admit(
    spec: LaunchSpec, config: DictConfig, job: JobOf | None = None, *, users_own: bool = False
) -> None:
    """Lets a run start, or does not.

    ``users_own``: workers run a function of the user's own, which no lock knows.

    Raises:
        PlanRefused: it is not what was reviewed, or not what its project allows.
        ConfigError: a policy or a lock cannot be read.
    """
    expect_own_environment(config)
    locked = bool(spec.locked) or locks_all(os.environ)
    top = tree_top(spec.runtime_cwd)
    policy = policy_of(top)
    if policy is None and not locked:
        return
    # most runs need none of these
    from lllaunch.review.allow import check  # noqa: PLC0415
    from lllaunch.review.hydra_node import with_hydra  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    spec = with_hydra(spec, config)
    plain: Any = OmegaConf.to_container(config, resolve=False)
    problems = check(spec, plain, policy, top, locked=locked)
    refused = (
        _against_lock(spec, config, job, problems, users_own=users_own)
        if locked
        else PlanRefused(problems=tuple(problems))
    )
    if refused.problems or refused.changes:
        raise refused


def expect_places(config: DictConfig, *, alone: bool) -> None:
    """Raise `PlanRefused` if Hydra would write where the project does not allow it.

    ``alone``: whether it is a run, and no sweep. Interpolations keep what they come to: the moment
    of ``${now:}`` may choose between paths.
    """
    top = tree_top(os.getcwd())
    policy = policy_of(top)
    if policy is None:
        return
    from lllaunch.review.allow import check_config  # noqa: PLC0415
    from lllaunch.review.hydra_node import written  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    HydraConfig.instance().set_config(config)
    if alone:
        runtime: Any = config.hydra.runtime
        with read_write(config.hydra), open_dict(runtime):
            runtime.output_dir = os.path.abspath(str(config.hydra.run.dir))
        HydraConfig.instance().set_config(config)
    problems = check_config({}, policy, top, written(config))
    if problems:
        raise PlanRefused(problems=tuple(problems))


def expect_own_environment(config: DictConfig) -> None:
    """Expects that a config leaves alone what lllaunch itself reads of the environment.

    Hydra sets ``hydra.job.env_set`` before a run starts, and so could name another policy.

    Raises:
        ConfigError: it does not.
    """
    node: Any = OmegaConf.select(config, "hydra.job.env_set", throw_on_resolution_failure=False)
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    message = "may not be set by a config: lllaunch itself reads it"
    problems = tuple(
        Diagnostic("reserved-variable", f"hydra.job.env_set.{name}", "", message)
        for name in names
        if name.startswith(_OURS)
    )
    if problems:
        raise ConfigError(problems)


def policy_of(top: str) -> Policy | None:
    """Read the policy of a project, if it has one; raises `ConfigError` if it is wrong."""
    path = policy_path(top, os.environ)
    if path is None:
        return None
    from lllaunch.review.policy import read_policy  # noqa: PLC0415 - as above

    policy = read_policy(shown_path(path))
    return replace(policy, paths=(*policy.paths, *_admitted))


_admitted: list[str] = []


def admit_directory(path: str) -> None:
    """Let a run of this process write to a directory, whatever the policy says of it.

    Of a batch job: who has submitted it was allowed to; here the tree may be a snapshot.
    """
    _admitted.append(path)


def has_rules() -> bool:
    """Return whether something says what may run in the working directory."""
    return locks_all(os.environ) or policy_path(tree_top(os.getcwd()), os.environ) is not None


def _against_lock(
    spec: LaunchSpec,
    config: DictConfig,
    job: JobOf | None,
    problems: list[Diagnostic],
    *,
    users_own: bool,
) -> PlanRefused:
    """Return how a run differs from its lock.

    Raises:
        PlanRefused: somebody edited the lock, or the run has no name.
        ConfigError: the lock cannot be read.
    """
    from lllaunch.config.plan import plan_hash  # noqa: PLC0415
    from lllaunch.review.allow import OWN_TARGETS  # noqa: PLC0415
    from lllaunch.review.lock import compare, lock_path, renew_command  # noqa: PLC0415
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415

    if users_own:
        message = "is of an app of its own, and locks hold plans of python -m lllaunch"
        hint = "name the function as launch.entrypoint, or do not lock it"
        own = Diagnostic("own-app", "the function", repr(spec.entrypoint.text), message, hint)
        return PlanRefused(problems=(*problems, own))
    plain: Any = OmegaConf.to_container(config.hydra.job.env_set, resolve=False)
    problems = [*problems, *variables_of_hydra(plain)]
    # launchers and sweepers of others: no lock has what they are given
    for parts, allowed in OWN_TARGETS.items() if job is not None else ():
        key = ".".join(parts)
        target = OmegaConf.select(config, key)
        if target not in allowed:
            message, hint = "is in no lock, with what it is given", "use lllaunch's own"
            problems.append(Diagnostic("unlocked-launcher", key, repr(target), message, hint))
    if job is not None and job.admitted and job.admitted == plan_hash(spec):
        return PlanRefused(problems=tuple(problems))
    name = spec.locked if isinstance(spec.locked, str) else experiment_name(config)
    if not name:
        message = "has no name that a lock could be found by"
        nameless = Diagnostic("lock-name", "", "the run", message, "set launch.locked=NAME")
        raise PlanRefused(problems=(nameless,))
    path = lock_path(spec.runtime_cwd, name)
    shown = os.path.relpath(path, spec.runtime_cwd)
    if not os.path.lexists(path):
        message = "does not exist: this plan has not been reviewed"
        missing = Diagnostic("no-lock", shown, "", message)
        command = words_of(config) if job is None else ("-m", *words_of(job.master))
        return PlanRefused(problems=(*problems, missing), renew=renew_command(command))
    # that of a sweep is not read again for each job, which takes a while
    found = os.stat(path)
    lock = _read_once(path, found.st_mtime_ns, found.st_size, found.st_ino)
    changes = compare(lock, spec, "" if job is None else job_name(job.overrides))
    return PlanRefused(shown, changes, tuple(problems), lock.renew if changes else "")


@functools.lru_cache(maxsize=32)
def _read_once(path: str, *changed: int) -> Lock:  # noqa: ARG001 - part of the key
    from lllaunch.review.lock import read_lock  # noqa: PLC0415 - as above

    return read_lock(path)


def variables_of_hydra(env_set: object) -> list[Diagnostic]:
    """Tells which variables Hydra sets for a run; no lock has them."""
    from lllaunch.review.allow import variables_set  # noqa: PLC0415

    message, hint = "is in no lock, and workers see it", "set it in launch.env"
    return [
        Diagnostic("unlocked-variable", f"hydra.job.env_set.{name}", "", message, hint)
        for name in variables_set(env_set)
    ]


def asks_for_lock(config: DictConfig) -> bool:
    """Whether a config, or the environment, asks for the reviewed plan, in whatever words."""
    launch: Any = OmegaConf.select(config, "launch", throw_on_resolution_failure=False)
    # unresolved: an interpolation counts as yes until it is known
    known = isinstance(launch, DictConfig)
    node = own_node(launch, "locked") if known else None
    wanted = raw_value(node) if node is not None else None
    return wanted not in (None, False) or locks_all(os.environ)
