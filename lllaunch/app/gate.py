"""The gate: is the plan the reviewed one, and does the project allow it, and all that Hydra makes?

Hydra writes overrides and configs to files, and prints the overrides of a job that failed. It
imports the packages that ``hydra.searchpath`` names, makes the logging, and then the callbacks, all
before a run of ours begins. So in our own apps its config loader is one that looks first: for
literal secrets, and at the allowlist. A run that is decided is judged once more.

Without a policy and without a lock everything may run, and this costs a look at a few directories.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from msgspec import structs
from omegaconf import AnyNode, DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.boundary import expect_readable
from lllaunch.app.planning import (
    PACKAGED,
    expect_own_environment,
    experiment_name,
    job_name,
    locating,
    words_of,
)
from lllaunch.config.fields import Findings
from lllaunch.config.omegaconf_compat import own_node, raw_value
from lllaunch.config.read import EXPOSED, Reader, exposed, not_secret, problems_with
from lllaunch.config.schema import PRESET_KEYS, PRESET_NAMES
from lllaunch.config.tree import shown_path
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.hydra_compat import BoundedRepository, WatchedLoader
from lllaunch.review.paths import LOCKS, PlanRefused, locks_all, policy_path, tree_top
from lllaunch.secret_names import literals_in

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath

    from lllaunch.review.allow import Policy
    from lllaunch.review.lock import Lock
    from lllaunch.spec import LaunchSpec

_SEARCHPATH = "hydra.searchpath"
_MODES = {f"hydra.mode={mode.name}": mode for mode in RunMode}
_PACKAGES = frozenset({PACKAGED, "pkg://hydra.conf"})


class JobOf(NamedTuple):
    """One job of a sweep."""

    overrides: Sequence[str]
    master: DictConfig  # what the sweep itself was composed to
    admitted: str = ""  # hash of its plan when it was tried, and was the reviewed one


def admit(
    spec: LaunchSpec, config: DictConfig, job: JobOf | None = None, *, users_own: bool = False
) -> None:
    """Raise `PlanRefused` unless a run is what was reviewed, and what its project allows.

    ``users_own``: workers run a function of the user's own, which no lock knows.
    """
    locked = bool(spec.locked) or locks_all(os.environ)
    top = tree_top(spec.runtime_cwd)
    policy = policy_of(top)
    if policy is None and not locked:
        return
    # most runs need none of these
    from lllaunch.review.allow import check, with_hydra  # noqa: PLC0415 - as above

    spec = with_hydra(spec, config)
    problems = check(spec, config, policy, top, locked=locked)
    refused = (
        _against_lock(spec, config, job, problems, users_own=users_own)
        if locked
        else PlanRefused(problems=tuple(problems))
    )
    if refused.problems or refused.changes:
        raise refused


def policy_of(top: str) -> Policy | None:
    """Read the policy of a project, if it has one; raises `ConfigError` if it is wrong."""
    path = policy_path(top, os.environ)
    if path is None:
        return None
    from lllaunch.review.allow import read_policy  # noqa: PLC0415 - as above

    policy = read_policy(shown_path(path))
    return structs.replace(policy, paths=(*policy.paths, *_admitted))


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
    """Return how a run differs from its lock; raise if nobody can tell."""
    from lllaunch.config.plan import plan_hash  # noqa: PLC0415
    from lllaunch.review.allow import OWN_TARGETS, unlocked_variables  # noqa: PLC0415
    from lllaunch.review.lock import compare  # noqa: PLC0415

    problems = [*problems, *unlocked_variables(config)]
    # launchers and sweepers of others: no lock has what they are given
    for parts, allowed in OWN_TARGETS.items() if job is not None else ():
        key = ".".join(parts)
        target = OmegaConf.select(config, key)
        if target not in allowed:
            message, hint = "is in no lock, with what it is given", "use lllaunch's own"
            problems.append(Diagnostic("unlocked-launcher", key, repr(target), message, hint))
    if job is not None and job.admitted and job.admitted == plan_hash(spec):
        return PlanRefused(problems=tuple(problems))
    try:
        path = expect_lock(spec, config, job, users_own=users_own)
    except PlanRefused as refused:
        refused.problems = (*problems, *refused.problems)
        raise
    # that of a sweep is not read again for each job, which takes a while
    found = os.stat(path)
    lock = _read_once(path, found.st_mtime_ns, found.st_size, found.st_ino)
    changes = compare(lock, spec, "" if job is None else job_name(job.overrides))
    shown = os.path.relpath(path, spec.runtime_cwd)
    return PlanRefused(shown, changes, tuple(problems), lock.renew if changes else "")


def lock_name(spec: LaunchSpec, config: DictConfig) -> str:
    """Returns what the lock of a run is called; empty if nothing says."""
    return spec.locked if isinstance(spec.locked, str) else experiment_name(config)


def expect_lock(
    spec: LaunchSpec, config: DictConfig, job: JobOf | None = None, *, users_own: bool = False
) -> str:
    """Return the path of the lock of a run; raise `PlanRefused` if there is none.

    A name that no lock can have is a `ConfigError`.
    """
    from lllaunch.review.lock import lock_path, renew_command  # noqa: PLC0415

    if users_own:
        named = repr(spec.entrypoint.text) if spec.entrypoint.text else ""
        message = "is of an app of its own, and locks hold plans of python -m lllaunch"
        hint = "name the function as launch.entrypoint, or do not lock it"
        own = Diagnostic("own-app", "the function", named, message, hint)
        raise PlanRefused(problems=(own,))
    name = lock_name(spec, config)
    if not name:
        message = "has no name that a lock could be found by"
        nameless = Diagnostic("lock-name", "", "the run", message, "set launch.locked=NAME")
        raise PlanRefused(problems=(nameless,))
    path = lock_path(spec.runtime_cwd, name)
    if not os.path.lexists(path):
        shown = os.path.relpath(path, spec.runtime_cwd)
        missing = Diagnostic(
            "no-lock", shown, "", "does not exist: this plan has not been reviewed"
        )
        command = words_of(config) if job is None else ("-m", *words_of(job.master))
        raise PlanRefused(problems=(missing,), renew=renew_command(command))
    return path


@functools.lru_cache(maxsize=32)
def _read_once(path: str, *changed: int) -> Lock:  # noqa: ARG001 - part of the key
    from lllaunch.review.lock import read_lock  # noqa: PLC0415 - as above

    return read_lock(path)


def asks_for_lock(config: DictConfig) -> bool:
    """Whether a config, or the environment, asks for the reviewed plan, in whatever words."""
    launch: Any = OmegaConf.select(config, "launch", throw_on_resolution_failure=False)
    # unresolved: an interpolation counts as yes until it is known
    known = isinstance(launch, DictConfig)
    node = own_node(launch, "locked") if known else None
    wanted = raw_value(node) if node is not None else None
    return wanted not in (None, False) or locks_all(os.environ)


class GuardedLoader(WatchedLoader):
    """Hydra's config loader, but what is not allowed is raised as a `PlanRefused`.

    Hydra composes every command line twice: first to see whether its configs ask for a sweep, then
    for use. Here what the first came to is what the second returns, unless they may differ.
    """

    # what was composed to see its mode, and of what
    _kept: tuple[str | None, list[str], DictConfig] | None = None

    def __init__(self, config_search_path: ConfigSearchPath, *, reviewing: bool = False) -> None:
        """``reviewing``: the caller makes nothing of what is composed, though it is not allowed.

        But packages that are not allowed are not looked in.
        """
        super().__init__(config_search_path)
        self._looks = not reviewing
        self.repository = BoundedRepository(
            config_search_path, expect_readable, self.look_at_search_path
        )

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Composes a config; called by Hydra, which has described the arguments."""
        known = self._again(config_name, overrides)
        if validate_sweep_overrides and known is not None:
            self.validate_sweep_overrides_legal([*self.parsed], run_mode, from_shell)
            return known
        # Hydra quotes what is wrong with an override
        if any(literals_in(overrides)):
            settings = [
                text
                for text in overrides
                # `+db/credentials=prod` is a file's name
                if not self.repository.group_exists(re.split("[=@:]", text.lstrip("+~"))[0])
            ]
            _refuse_literals(literals_in(settings))
        if validate_sweep_overrides:
            return self._compose(config_name, overrides, run_mode, from_shell, True)
        try:
            # what a run takes, a sweep takes as well
            config = self._compose(config_name, overrides, RunMode.RUN, from_shell, False)
        except ConfigCompositionException:
            # but nobody may have chosen one of a sweep's groups
            return self._compose(config_name, overrides, run_mode, from_shell, False)
        self._kept = config_name, list(overrides), config
        return config

    def _again(self, name: str | None, overrides: list[str]) -> DictConfig | None:
        """Return what was composed before if it is what a command line comes to."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        former, before, config = kept
        added = overrides[len(before) :]
        same = name == former and overrides[: len(before)] == before and set(added) <= {*_MODES}
        if not same or len(added) > 1:
            return None
        for word in added:
            # where no config says the mode Hydra adds it to the command line
            config.hydra.mode = _MODES[word]
            config.hydra.overrides.hydra.append(word)
        return config

    def _compose(self, *args: Any) -> DictConfig:
        config = super().load_configuration(*args)
        # of variables that are copied, which Hydra writes to files, names stand there and no values
        job: Any = config.hydra.job
        if job.env_copy:
            with read_write(job), open_dict(job):
                for name in job.env_copy:
                    job.env_set[name] = f"${{oc.env:{name}}}"
        if self._looks:
            with locating(self, config):
                # of Hydra's own, what somebody sets
                known = Reader(config, Findings(), "hydra.job.env_set", "hydra.launcher")
                _refuse_literals(known.secrets)
                self._judge(config)
            for key in exposed(known.root, allowed=not_secret(known.root)):
                print(f"lllaunch: warning: {key}: {EXPOSED}", file=sys.stderr)
        return config

    def complete(self, config: DictConfig) -> None:
        """Complete what the files come to, before overrides.

        A preset that a file names (``watchdog: default``) becomes a mapping with that name, so that
        an override can change a part of it: ``launch.watchdog.stall=20m``.
        """
        for key in PRESET_KEYS:
            above, _, last = key.rpartition(".")
            node = OmegaConf.select(config, above)
            # launchers of others have no such key
            found = own_node(node, last) if isinstance(node, DictConfig) else None
            if isinstance(found, AnyNode) and raw_value(found) in PRESET_NAMES:
                with read_write(node), open_dict(node):
                    node[last] = {"preset": raw_value(found)}

    def list_groups(self, parent_name: str) -> list[str]:
        """Groups to choose from, without locks; called by Hydra, for help and completion."""
        return [
            name
            for name in super().list_groups(parent_name)
            if "/".join(filter(None, (parent_name, name))) != LOCKS
        ]

    def look_at_search_path(self, path: ConfigSearchPath) -> None:
        """Refuse packages that the project does not allow to look in: Hydra imports them."""
        found = [
            each
            for each in path.get_path()
            if each.provider.startswith(_SEARCHPATH)
            or (each.path.startswith("pkg:") and each.path not in _PACKAGES)
        ]
        if not found or self._policy is None:
            return
        from lllaunch.review.allow import check  # noqa: PLC0415 - as above

        config = OmegaConf.create({"hydra": {"searchpath": [each.path for each in found]}})
        problems = check(None, config, self._policy, tree_top(os.getcwd()))
        if problems and found[0].provider == f"{_SEARCHPATH} in main":
            from lllaunch.config.origins import origins_of_one  # noqa: PLC0415 - as above

            problems = [*map(origins_of_one(*self.primary).locate, problems)]
        _refuse_if_any(problems)

    def _judge(self, config: DictConfig) -> None:
        """Raise unless a config is allowed, and where Hydra would write to.

        Interpolations keep what they come to: the moment of ``${now:}`` may choose between paths.
        """
        expect_own_environment(config)
        locked = self._policy is None and asks_for_lock(config)
        if self._policy is None and not locked:
            return
        from lllaunch.review.allow import check  # noqa: PLC0415 - as above

        with _as_hydras(config) as own:
            _refuse_if_any(check(None, own, self._policy, tree_top(os.getcwd()), locked=locked))

    @functools.cached_property
    def _policy(self) -> Policy | None:
        """The project's policy, read once."""
        return policy_of(tree_top(os.getcwd()))


@contextlib.contextmanager
def _as_hydras(config: DictConfig) -> Iterator[DictConfig]:
    """Yield a copy of a config that is Hydra's own in the block, as of a run in its directory."""
    instance, own = HydraConfig.instance(), copy.deepcopy(config)
    former, hydra = instance.cfg, own.hydra
    try:
        instance.set_config(own)
        # what Hydra fills in when a job begins
        with read_write(hydra), contextlib.suppress(OmegaConfBaseException):
            hydra.job.num = hydra.job.id = 0
            hydra.runtime.output_dir = os.path.abspath(str(hydra.run.dir))
        instance.set_config(own)
        yield own
    finally:
        OmegaConf.copy_cache(own, config)
        instance.cfg = former


def _refuse_if_any(problems: list[Diagnostic]) -> None:
    if problems:
        raise PlanRefused(problems=tuple(problems))


def _refuse_literals(secrets: Iterable[tuple[str, str, str]]) -> None:
    """Refuse a config before Hydra makes a directory, writes it to files and prints overrides."""
    problems = problems_with(secrets)
    if problems:
        raise ConfigError(tuple(problems))
