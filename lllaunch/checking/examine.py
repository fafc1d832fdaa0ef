"""Composes experiments one after another and notes all that is wrong with each; runs nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.app.compose import ComposeFailed, Composition, ConfigRequest
from lllaunch.app.configs import DIRECTORY, experiment_name
from lllaunch.checking.findings import REFUSED, WRONG, CheckedDiagnostic
from lllaunch.checking.lint import (
    KeyUsage,
    may_be_shadowed,
    shadowed,
    unused_keys,
    usage_of,
)
from lllaunch.checking.tree import ConfigFile, Experiment, Graph, found_in, includes_of
from lllaunch.config.fields import did_you_mean
from lllaunch.config.interpolation import may_refer_to
from lllaunch.config.origins import Origins
from lllaunch.config.plan import plan_hash
from lllaunch.config.tree import parts_of, shown_path, value_at
from lllaunch.errors import Code, ConfigError, Diagnostic
from lllaunch.hydra_compat import HydraMessage
from lllaunch.review.allow import check
from lllaunch.review.paths import POLICY_FILE, locks_all
from lllaunch.review.refused import PlanRefused
from lllaunch.text import shorten

if TYPE_CHECKING:
    from lllaunch.review.policy import Policy
    from lllaunch.spec import LaunchSpec


_LONGEST = 600
_MOST_OPTIONS = 10
# comparing a word with all keys takes its time
_MOST_CHOICES = 1_000


class ProblemLocator:
    """Finds the lines of one experiment's problems."""

    def __init__(
        self, experiment: str, file: ConfigFile, config: Mapping[Any, Any], origins: Origins
    ) -> None:
        self._experiment = experiment
        self._file = file
        self._config = config
        self._origins = origins

    def locate(self, problem: Diagnostic, exit_code: int) -> CheckedDiagnostic:
        """Returns a problem with its place."""
        missing = self._missing(problem)
        at = missing[1] if missing else problem.key
        file, line = self.place(at)
        if missing and not problem.hint:
            problem = replace(problem, hint=self._meant(missing[0]))
        placed = replace(problem, file=file, line=line)
        return CheckedDiagnostic.of(placed, exit_code, (self._experiment,))

    def place(self, key: str) -> tuple[str, int]:
        """File and line of a key, of what it refers to, or of what it is in."""
        origin = self._origins.stands_in(key)
        if origin is not None and origin.kind == "file":
            return origin.where, origin.line or 1
        return self._file.path, self._file.line_of(*parts_of(key)[:1])

    def _missing(self, problem: Diagnostic) -> tuple[str, str] | None:
        """The key that an interpolation asks for in vain, and the key where it does."""
        if problem.code != "interpolation":
            return None
        told = re.search(HydraMessage.NO_KEY, problem.message)
        if told is None:
            return None
        for link in self._origins.chain(problem.key):
            path = parts_of(link.key)
            for each in may_refer_to(value_at(self._config, path), path):
                if each.endswith(told[1].lstrip(".")):
                    return each, link.key
        return told[1], problem.key

    def _meant(self, key: str) -> str:
        above, _, name = key.rpartition(".")
        node = value_at(self._config, parts_of(above)) if above else None
        near = [str(each) for each in node or ()] if isinstance(node, Mapping) else []
        hint = did_you_mean(name, near[:_MOST_CHOICES])
        if hint:
            return hint.replace("'", f"'{above}.", 1)
        keys = self._origins.keys()  # no mapping: an iterator
        others = [each for each in keys if not _is_near(each, key, above)]
        hint = did_you_mean(key, others[:_MOST_CHOICES])
        if hint or not near:
            return hint
        return f"there is {', '.join(f'{above}.{each}' for each in near[:_MOST_OPTIONS])}"


def _is_near(other: str, key: str, above: str) -> bool:
    """Whether a key is above or beside another one, or is one of Hydra's."""
    beside = bool(above) and other.startswith(f"{above}.")
    return beside or key.startswith(f"{other}.") or other.startswith("hydra.")


def compose_problem(
    reason: str, experiment: str, file: ConfigFile, files: Mapping[str, ConfigFile], exit_code: int
) -> CheckedDiagnostic:
    """Return why Hydra cannot compose an experiment, at the line that asks for what is missing."""
    asked_by = re.search(HydraMessage.INCLUDED_BY, reason)
    asking = files.get(asked_by[1], file) if asked_by else file
    name, message = in_short(reason, files)
    key, line = "", 1
    if name:
        lines = [each.line for each in includes_of(asking) if each.name == name]
        key, line = "defaults", lines[0] if lines else asking.line_of("defaults")
    elif full := re.search(HydraMessage.FULL_KEY, reason):
        key, line = full[1], asking.line_of(*parts_of(full[1]))
    said = message if name else f"cannot be composed: {message}"
    return CheckedDiagnostic.at(exit_code, "compose", asking.path, line, key, said, (experiment,))


def in_short(reason: str, names: Iterable[str]) -> tuple[str, str]:
    """Return the config that is missing (or empty), and why Hydra cannot compose, on one line."""
    wanted = re.search(HydraMessage.NO_CONFIG, reason)
    if wanted is None:
        return "", shorten(" ".join(re.sub(HydraMessage.FULL_KEY, "", reason).split()), _LONGEST)
    name = wanted[1].removesuffix(".yaml")
    group, _, option = name.rpartition("/")
    options = re.search(HydraMessage.OPTIONS, reason)
    hint = did_you_mean(option, options[1].split()) if options else did_you_mean(name, names)
    if options and not hint:
        hint = f"there are {', '.join(options[1].split()[:_MOST_OPTIONS])} in {group}"
    return name, f"there is no config {name!r}" + (f"; {hint}" if hint else "")


# what a config that others complete need not have


@dataclass(frozen=True)
class CheckContext:
    """What experiments are held against."""

    directory: str
    files: Mapping[str, ConfigFile]
    graph: Graph
    policy: Policy | None
    top: str
    environ: Mapping[str, str]

    def command(self, experiment: Experiment) -> ConfigRequest:
        """What runs an experiment of the tree."""
        usual = os.path.abspath(self.directory) == os.path.abspath(DIRECTORY)
        directory = None if usual else self.directory
        return ConfigRequest(
            experiment.overrides, config_name=experiment.config_name, config_dir=directory
        )


@dataclass
class Examined:
    """What is known of an experiment."""

    experiment: Experiment
    command: ConfigRequest
    found: list[CheckedDiagnostic] = field(default_factory=list)
    # its run; None if there is something wrong with it, or if it is not whole
    spec: LaunchSpec | None = None
    lock: str = ""  # name of the lock that it must have; empty if it need not have one
    lock_place: tuple[str, int] = ("", 0)  # file and line that ask for the lock
    # what it makes of its values, None if that does not count or is not known
    usage: KeyUsage | None = None

    @property
    def plan_hash(self) -> str:
        """Of its plan; empty if it has none."""
        whole = self.spec is not None and self.spec.entrypoint.text
        return plan_hash(self.spec) if self.spec is not None and whole else ""

    def note(self, code: Code, message: str, file: str, line: int) -> None:
        """Notes why it may not run."""
        names = (self.experiment.name,)
        self.found.append(CheckedDiagnostic.at(REFUSED, code, file, line, "", message, names))


def examine(experiments: Iterable[Experiment], around: CheckContext) -> Iterator[Examined]:
    """Compose experiments, in order of their primary configs.

    None of them is endless or has files that cannot be read.
    """
    by_primary: dict[str | None, list[Experiment]] = {}
    for each in experiments:
        by_primary.setdefault(each.config_name, []).append(each)
    for some in by_primary.values():
        command = around.command(some[0])._replace(overrides=())
        with Composition(command) as composed, _little_collection():
            for each in some:
                examined = Examined(each, around.command(each))
                try:
                    _Examination(examined, composed, around).perform()
                except Exception as error:  # noqa: BLE001 - one hostile config must not hide the others
                    examined.found += _failure(each, error, around)
                yield examined


def _failure(
    experiment: Experiment, error: Exception, around: CheckContext
) -> list[CheckedDiagnostic]:
    """Why an experiment has come to no plan."""
    name, file = experiment.name, experiment.file
    if isinstance(error, ConfigError):
        # of the policy, which the loader looks at
        return [replace(each, experiments=(name,)) for each in found_in(error, file.path)]
    if isinstance(error, PlanRefused):
        line = file.line_of("hydra", "searchpath")
        return [
            CheckedDiagnostic.of(replace(each, file=file.path, line=line), REFUSED, (name,))
            for each in error.problems
        ]
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, ComposeFailed):
        # Hydra's own words, which name the file that asks
        reason = error.reason
    if experiment.may_be_partial and re.search(HydraMessage.INCOMPLETE, reason):
        return []
    return [compose_problem(reason, name, file, around.files, WRONG)]


@contextlib.contextmanager
def _little_collection() -> Iterator[None]:
    """Looks for garbage less often: composing makes many objects, most of which are no garbage."""
    known = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*known)


class _Examination:
    """Examines one experiment."""

    def __init__(self, examined: Examined, composed: Composition, around: CheckContext) -> None:
        self._examined = examined
        self._experiment = examined.experiment
        self._composed = composed
        self._around = around
        self._problems: list[tuple[Diagnostic, int]] = []

    def perform(self) -> None:
        """Notes everything in the result.

        Raises:
            LaunchError: it cannot be composed.
        """
        experiment, file = self._experiment, self._experiment.file
        cfg = self._composed.compose(experiment.overrides)
        config: Any = OmegaConf.to_container(cfg, resolve=False)
        launch = config.get("launch")
        whole = isinstance(launch, dict) and launch.get("entrypoint") is not None
        users_own = experiment.config_name is not None and not whole
        spec = self._planned(cfg, users_own=users_own)
        locked = self._review(spec, config, users_own=users_own) if spec is not None else False
        unused = frozenset() if users_own else unused_keys(config)
        told = locked or self._problems or unused or may_be_shadowed(file)
        # to find out where values came from takes as long as to compose them
        origins = self._composed.origins(experiment.overrides) if told else None
        known = origins or Origins({})
        if not users_own:
            files = self._around.files
            made_of = [files[name].path for name in self._around.graph.reached([file.name])]
            paths = (each.path for each in files.values())
            self._examined.usage = usage_of(config, unused, made_of, known, paths)
        places = ProblemLocator(experiment.name, file, config, known)
        self._examined.found += [places.locate(*each) for each in self._problems]
        if origins is not None:
            self._examined.found += shadowed(config, origins, file.path, experiment.name)
        if locked and spec is not None:
            self._ask_for_lock(spec, places, experiment_name(cfg), users_own=users_own)

    def _planned(self, cfg: DictConfig, *, users_own: bool) -> LaunchSpec | None:
        try:
            spec = self._composed.plan(cfg, entrypoint_required=not users_own)
        except ConfigError as error:
            partial = self._experiment.may_be_partial
            self._problems += [
                (each, WRONG) for each in error.problems if not (partial and _may_be_given(each))
            ]
            return None
        self._examined.spec = None if users_own else spec
        return spec

    def _review(self, spec: LaunchSpec, config: Mapping[Any, Any], *, users_own: bool) -> bool:
        """Notes what is not allowed, and returns whether only a reviewed plan may run."""
        around = self._around
        everywhere = locks_all(around.environ) and not self._experiment.is_preset
        locked = bool(spec.locked) or (everywhere and not users_own)
        # the app itself names a function
        problems = check(
            *(spec, config, around.policy, around.top),
            locked=locked,
            environ=around.environ,
            entrypoint=not users_own,
        )
        for each in problems:
            if each.code == "no-policy":
                path = shown_path(os.path.join(around.top, POLICY_FILE))
                self._examined.note(each.code, each.text, path, 0)
            else:
                self._problems.append((each, REFUSED))
        return locked

    def _ask_for_lock(
        self, spec: LaunchSpec, places: ProblemLocator, name: str, *, users_own: bool
    ) -> None:
        examined = self._examined
        place = places.place("launch.locked") if spec.locked else (self._experiment.file.path, 1)
        examined.lock = spec.locked if isinstance(spec.locked, str) else name
        examined.lock_place = place
        if users_own:
            message = "is locked, and is an app of its own: locks hold plans of python -m lllaunch"
            examined.note("own-app", message, *place)
            examined.lock = ""
        elif not examined.lock:
            message = "is locked, and has no name that a lock could be found by"
            examined.note("lock-name", f"{message}; set launch.locked=NAME", *place)


def _may_be_given(problem: Diagnostic) -> bool:
    """Whether other configs may give what is not there."""
    return problem.code in {"missing", "interpolation", "entrypoint"}
