"""Checks a tree of configs: all its experiments, files and locks at once.

Hydra would follow every alias, and would stop at the first file that is no YAML. So each file is
read first, by `lllaunch.config.document`, which takes no more than it can bear. Then each
experiment is composed as a run would, in a fork with a time limit; nothing is run.

Workers of ``python -m lllaunch`` get what ``launch`` says and nothing else of the config. So a
top-level key that nothing refers to has no effect, and is most likely a mistake. A file that
several experiments share is blamed only for what none of them uses. It counts that a key may be
used in some way, by a resolver of the user's as well.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from lllaunch.app.boundary import without_variables
from lllaunch.app.command_line import quoted
from lllaunch.app.compose import ComposeFailed, Composition, ConfigRequest, review_sweep
from lllaunch.app.gate import expect_lock, lock_name, policy_of
from lllaunch.app.jobs import in_fork
from lllaunch.app.planning import DIRECTORY, EXPERIMENTS, PRIMARY
from lllaunch.checking.findings import (
    REFUSED,
    WRONG,
    Checked,
    CheckedDiagnostic,
    Outcome,
    is_in,
    merged,
)
from lllaunch.config.document import NO_LINES, Document, parse, read_text, wrong
from lllaunch.config.fields import did_you_mean
from lllaunch.config.omegaconf_compat import may_refer_to
from lllaunch.config.origins import Origins
from lllaunch.config.plan import hash_of, portable_plan
from lllaunch.config.read import EXPOSED, exposed, literals, not_secret
from lllaunch.config.schema import is_set
from lllaunch.config.tree import dotted, leaf_items, parts_of, shown_path
from lllaunch.documents import Change, differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic, LaunchError
from lllaunch.hydra_compat import HydraMessage
from lllaunch.review.allow import check
from lllaunch.review.lock import Lock, read_lock, sweep_plan
from lllaunch.review.paths import LOCKS, POLICY_FILE, PlanRefused, locks_all, tree_top
from lllaunch.secret_names import is_secret_name, redactor
from lllaunch.spec import KEYS
from lllaunch.text import shorten

if TYPE_CHECKING:
    from lllaunch.review.allow import Policy
    from lllaunch.spec import LaunchSpec

_HEADER = re.compile(r"\s*#\s*@")
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*")

MOST_FILES = 20_000
"""Entries of all directories of a tree."""

_EMPTY = Document({}, NO_LINES)


@dataclass(frozen=True)
class ConfigFile:
    """One config file, by the name that Hydra gives it; ``problem`` is why it cannot be read."""

    name: str
    path: str
    document: Document = field(default=_EMPTY, repr=False)
    header: str | None = None  # the package that it begins with
    late: int = 0  # line of a ``# @package`` where Hydra no longer looks for it
    problem: CheckedDiagnostic | None = None

    @classmethod
    def of(cls, name: str, path: str, text: str) -> ConfigFile:
        """Read the text of a config file.

        Raises:
            ConfigError: Hydra could not read it, or it is more than anybody should; the problem
                names its line.
        """
        return cls(name, path, parse(text, path, as_hydra=True), *_package(text))

    @property
    def group(self) -> str:
        """The group that it is in; empty at the root."""
        return self.name.rpartition("/")[0]

    @property
    def data(self) -> dict[Any, Any]:
        """What it says; empty if that is no mapping."""
        return self.document.data if isinstance(self.document.data, dict) else {}

    @property
    def package(self) -> str:
        """The dotted key that its content is put under, unless a defaults list names another."""
        group = self.group.replace("/", ".")
        if self.header is None:
            return group
        if self.header == "_global_":
            return ""
        return self.header.replace("_group_", group).replace("_global_.", "")

    def line_of(self, *path: object) -> int:
        """The line of a value; that of what it is in, or 1, where there is none."""
        return self.document.lines.nearest(path)

    def line_of_choice(self, name: str) -> int:
        """The line of the defaults list that asks for a config, as far as that is clear."""
        option = name.rpartition("/")[2]
        entries = self.data.get("defaults")
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            words = {"": entry} if not isinstance(entry, dict) else entry
            for _, word in leaf_items(words):
                asked = str(word).partition("@")[0].removesuffix(".yaml").rpartition("/")[2]
                if asked == option:
                    return self.line_of("defaults", index)
        return self.line_of("defaults")


def _package(text: str) -> tuple[str | None, int]:
    """The package that a file begins with, and the line of one that comes too late."""
    header = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        found = _PACKAGE.fullmatch(line)
        if found:
            return (found[1], 0) if header else (None, number)
        # an ordinary comment ends it, too
        header = header and (not line.strip() or bool(_HEADER.match(line)))
    return None, 0


@dataclass(frozen=True)
class ConfigTree:
    """The files of a tree, by name; ``found`` is what is wrong with files as such."""

    directory: str
    files: dict[str, ConfigFile]
    locks: dict[str, str]
    policy: str = ""
    found: tuple[CheckedDiagnostic, ...] = ()


def read_tree(directory: str) -> ConfigTree:
    """Reads all files of a tree of configs."""
    found: list[CheckedDiagnostic] = []
    policy = ""
    files: dict[str, ConfigFile] = {}
    locks: dict[str, str] = {}
    for name in _names(directory, found):
        path = shown_path(os.path.join(directory, name))
        stem, extension = os.path.splitext(name)
        if extension == ".yml":
            message = "is never read: for Hydra the names of configs end in .yaml"
            found.append(CheckedDiagnostic.at(0, "unread", path, 0, "", message))
        if extension != ".yaml":
            continue
        if name == os.path.basename(POLICY_FILE):
            policy = path
        elif stem.startswith(f"{LOCKS}/"):
            locks[stem.partition("/")[2]] = path
        else:
            try:
                files[stem] = ConfigFile.of(stem, path, read_text(path))
            except ConfigError as error:
                problem, *_ = found_in(error.problems)
                files[stem] = ConfigFile(stem, path, problem=problem)
                found.append(problem)
    return ConfigTree(shown_path(directory), files, locks, policy, tuple(found))


def found_in(
    problems: Iterable[Diagnostic], file: str = "", exit_code: int = WRONG
) -> list[CheckedDiagnostic]:
    """Returns the problems of a file, which know their place.

    Problems without a file are about ``file`` or, without that, the file of the one before.
    """
    found = []
    for each in problems:
        line = 0
        if each.file:
            file, line = shown_path(each.file), each.line
        found.append(CheckedDiagnostic.of(replace(each, file=file, line=line), exit_code))
    return found


def _names(directory: str, found: list[CheckedDiagnostic]) -> Iterator[str]:
    """Paths of all files, relative to the directory, in order; hidden ones are left out."""

    def unreadable(error: OSError) -> None:
        path, message = shown_path(str(error.filename)), f"cannot be read: {error.strerror}"
        found.append(CheckedDiagnostic.at(WRONG, "file", path, 0, "", message))

    # links may lead back to where they are
    seen: set[tuple[int, int]] = set()
    count = 0
    for path, directories, names in os.walk(directory, followlinks=True, onerror=unreadable):
        status = os.stat(path)
        count += len(directories) + len(names)
        if (status.st_dev, status.st_ino) in seen:
            directories.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if count > MOST_FILES:
            message = f"holds more than {MOST_FILES} files: the others are not checked"
            place = (shown_path(directory), 0, "", message)
            found.append(CheckedDiagnostic.at(WRONG, "too-large", *place))
            return
        below = os.path.relpath(path, directory)
        prefix = "" if below == os.curdir else f"{below}/"
        yield from (f"{prefix}{name}" for name in sorted(names) if not name.startswith("."))
        shown = {name for name in directories if not name.startswith(".")} - {"__pycache__"}
        directories[:] = sorted(shown)


_LAUNCH = "launch"


@dataclass(frozen=True)
class Experiment:
    """One config that can be run, by the overrides that choose it.

    ``name`` is without the group for those in ``exp``; ``config_name`` is None for lllaunch's own
    primary config. ``certain``: False if it is none unless what it includes sets ``launch``.
    """

    name: str
    file: ConfigFile
    overrides: tuple[str, ...] = ()
    config_name: str | None = None
    certain: bool = True

    @property
    def is_preset(self) -> bool:
        """Whether it is only a choice beside the experiments, and need not be whole."""
        return self.config_name is None and not self.file.name.startswith(f"{EXPERIMENTS}/")


def find_experiments(files: Iterable[ConfigFile]) -> Iterator[Experiment]:
    """Yield the experiments of a tree, and what may be one, by name."""
    known = {file.name: file for file in files}
    for name, file in known.items():
        group, _, option = name.rpartition("/")
        if name.startswith(f"{EXPERIMENTS}/"):
            rest = name.partition("/")[2]
            # another config may have the same name
            told = name if rest in known else rest
            yield Experiment(told, file, (f"+{EXPERIMENTS}={quoted(rest, numbers=False)}",))
        elif not group:
            yield Experiment(name, file, (), name, certain=_LAUNCH in file.data)
        elif file.header == "_global_" and isinstance(file.data.get(_LAUNCH), dict):
            yield Experiment(name, file, (f"+{group}={quoted(option, numbers=False)}",))


# Here a number of base 60 can only be something else that was not quoted.
_NEVER_NUMBERS = (
    *("launch.tee", "launch.redirects", "launch.grace_period", "launch.local_ranks_filter"),
    *("launch.watchdog", "launch.restart", "launch.nnodes", "launch.rdzv"),
)


def lint(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a file."""
    yield from misplaced(file)
    for key in exposed(file.data, file.package, not_secret(file.data)):
        line = file.line_of(*key.removeprefix(f"{file.package}.").split("."))
        yield CheckedDiagnostic.at(0, "secret", file.path, line, key, EXPOSED)
    for each in file.document.sexagesimals:
        key = dotted([*file.package.split("."), *each.path] if file.package else each.path)
        text, number = shorten(each.text, 40), shorten(repr(each.number), 40)
        if any(map(is_secret_name, each.path)):
            text, number = "it", "a number of base 60"
        message = f"YAML reads {text} as {number}: quote it"
        code = WRONG if is_in(key, *_NEVER_NUMBERS) else 0
        yield CheckedDiagnostic.at(code, "base-60", file.path, each.line, shorten(key), message)


def misplaced(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells if a file is put elsewhere than its text seems to say."""
    if file.late:
        message = "comes too late: '# @package' has to stand before anything else, comments too"
        yield CheckedDiagnostic.at(WRONG, "package", file.path, file.late, "", message)
        return
    if not file.name.startswith(f"{EXPERIMENTS}/"):
        return
    if not isinstance(file.document.data, (dict, type(None))):
        message = "is no mapping of keys to values"
        yield CheckedDiagnostic.at(WRONG, "type", file.path, 1, "", message)
    elif file.header is None and "launch" in file.data:
        message = (
            f"is put under {file.package}, where nothing reads it; "
            "begin the file with '# @package _global_'"
        )
        line = file.line_of("launch")
        yield CheckedDiagnostic.at(WRONG, "package", file.path, line, "launch", message)


LONGEST, LONGEST_OF_LOCKS = 60.0, 300.0
"""How long composing one experiment, or what a lock holds, may take, seconds."""

_LONGEST_REASON = 600  # characters
# comparing a word with all keys takes its time
_MOST_CHOICES = 1_000
_MOST_LINES = 20
# what configs may give that include this one; what is about a lock
_MAY_COME = ("missing", "interpolation", "entrypoint")
_OF_LOCKS = ("own-app", "lock-name", "no-lock")
_JOBS = "jobs"

T = TypeVar("T")


def check_tree(directory: str) -> Outcome:
    """Checks all that is in a tree of configs. Nothing is started, nothing is written.

    Raises:
        ConfigError: there is no such directory.
    """
    if not os.path.isdir(directory):
        raise wrong(directory, 0, "is not a directory")
    tree = read_tree(directory)
    policy, about_policy = None, []
    try:
        policy = policy_of(tree_top(os.getcwd()))
    except ConfigError as error:
        about_policy = found_in(error.problems)
    linted = [found for file in tree.files.values() for found in lint(file)]
    usual = os.path.abspath(directory) == os.path.abspath(DIRECTORY)
    every = list(examine(tree, policy, None if usual else tree.directory))
    for each in every:
        file = each.experiment.file.path
        included = any(file in other.made_of for other in every if other is not each)
        each.found += [] if each.experiment.is_preset or included else each.left_open
    examined = [each for each in every if each.is_one]
    by_command = {each.command: each for each in examined}
    # what says again, in other words, what the text of a file shows
    shown = [each for each in linted if each.exit_code]
    found = [
        *(*tree.found, *about_policy, *linted),
        *(each for one in examined for each in one.found if not any(map(each.repeats, shown))),
        *told_unused(examined),
        *(each for lock in tree.locks.items() for each in compare_lock(*lock, by_command)),
    ]
    outcome = Outcome(
        tree.directory,
        tuple(each.checked for each in examined),
        tuple(tree.locks.values()),
        (*(file.path for file in tree.files.values()), *filter(None, [tree.policy])),
        tuple(merged(found)),
    )
    every_literal = itertools.chain.from_iterable(
        literals(one.document.data) for one in tree.files.values()
    )
    literal = redactor({text: source for _, source, text in every_literal}, certain=True)
    return outcome.cleaned(lambda text: without_variables(literal(text)))


# Locks


def compare_lock(
    name: str, path: str, examined: Mapping[ConfigRequest, Examined]
) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a lock, or differs from it; ``examined`` are known by command."""
    try:
        lock = read_lock(path)
    except ConfigError as error:
        yield from found_in(error.problems)
        return
    except PlanRefused as refused:
        for each in refused.problems:
            line = each.line if each.file else 1
            message = f"{each.text}: {refused.renew}"
            yield CheckedDiagnostic.at(REFUSED, each.code, path, line, each.key, message)
        return
    named = lock.command[:1] == ("--name",)
    experiment = ""
    changes: tuple[Change, ...] | str | None
    try:
        command = ConfigRequest.parse(lock.command[2:] if named else lock.command)
        known = examined.get(command)
        if known is None or _JOBS in lock.plan:
            whose = None if named else name
            changes = in_fork(lambda: _composed_changes(lock, command, whose), LONGEST_OF_LOCKS)
        elif known.plan is None:
            changes = f"makes no plan any more: see {known.experiment.file.path}"
        else:
            experiment, changes = known.experiment.name, differences(lock.plan, known.plan)
    except ValueError as error:
        changes = f"is no command that makes a plan: {shorten(str(error))}"
    if changes is None:
        changes = f"cannot be composed within {LONGEST_OF_LOCKS:g} s"
    if isinstance(changes, str):
        yield CheckedDiagnostic.at(WRONG, "lock", path, 1, "command", changes)
    elif changes:
        lines = [f"  {line}" for line in text_lines(changes, _MOST_LINES)]
        advice = f"if this is what shall run, have it reviewed anew: {lock.renew}"
        whose_plan = f"the plan of {experiment}" if experiment else "the plan"
        message = "\n".join([f"{whose_plan} is not the reviewed one:", *lines, advice])
        names = (experiment,) if experiment else ()
        yield CheckedDiagnostic.at(REFUSED, "not-reviewed", path, 1, "", message, names)


def _composed_changes(
    lock: Lock, command: ConfigRequest, name: str | None
) -> tuple[Change, ...] | str:
    """What differs from a lock, or why that is not known."""
    plan: Mapping[str, Any]
    try:
        composed = Composition(command)
        if _JOBS in lock.plan or composed.is_sweep():
            # those that have the lock's name, or all if it was given to them
            runs = (run for run in review_sweep(composed) if name in {None, run.name})
            plan = sweep_plan({run.job: run.spec for run in runs})
        else:
            plan = portable_plan(composed.plan(composed.compose()))
        return differences(lock.plan, plan)
    except Exception as error:  # noqa: BLE001 - one hostile lock must not hide the others
        return f"makes no plan any more: {in_short(error)}"


# Experiments


def compose_problem(
    error: Exception, experiment: str, file: ConfigFile, files: Mapping[str, ConfigFile]
) -> CheckedDiagnostic:
    """Return why Hydra cannot compose an experiment, at the line that asks for what is missing."""
    reason = error.reason if isinstance(error, ComposeFailed) else ""
    asked_by = re.search(HydraMessage.INCLUDED_BY, reason)
    asking = files.get(asked_by[1], file) if asked_by else file
    missing = re.search(HydraMessage.NO_CONFIG, reason)
    message = in_short(error).removeprefix(f"{asking.path}: ")
    key, line = "", 1
    if missing:
        key, line = "defaults", asking.line_of_choice(missing[1].removesuffix(".yaml"))
    elif full := re.search(HydraMessage.FULL_KEY, reason):
        key, line = full[1], asking.line_of(*parts_of(full[1]))
    said = message if missing else f"cannot be composed: {message}"
    return CheckedDiagnostic.at(WRONG, "compose", asking.path, line, key, said, (experiment,))


def in_short(error: Exception) -> str:
    """Return why something cannot be composed, on one line."""
    text = str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
    return shorten(" ".join(re.sub(HydraMessage.FULL_KEY, "", text).split()), _LONGEST_REASON)


@dataclass
class Examined:
    """What is known of an experiment."""

    experiment: Experiment
    command: ConfigRequest
    found: list[CheckedDiagnostic] = field(default_factory=list)
    # what is no problem where other configs may give what is not there
    left_open: list[CheckedDiagnostic] = field(default_factory=list)
    made_of: set[str] = field(default_factory=set)  # paths of the files
    is_one: bool = True  # whether it is an experiment at all
    # its plan as it is compared; None if there is something wrong with it, or if it is not whole
    plan: Mapping[str, Any] | None = None
    plan_hash: str = ""  # empty if it has none
    locked: bool = False  # whether it may only run with a lock, and can have one
    used: frozenset[str] = frozenset()  # its top-level keys that something refers to
    # and the others, where a file of the tree gives them
    unused: list[CheckedDiagnostic] = field(default_factory=list)

    @property
    def checked(self) -> Checked:
        """What is told of it."""
        name, file = self.experiment.name, self.experiment.file.path
        return Checked(name, file, self.command.words, self.plan_hash, self.locked)


def examine(tree: ConfigTree, policy: Policy | None, directory: str | None) -> Iterator[Examined]:
    """Compose experiments, each in a fork; those whose files cannot be read are not composed.

    ``directory``: of the tree, where runs do not look by themselves.
    """
    composed = Composition(ConfigRequest(config_dir=directory))
    with contextlib.suppress(LaunchError):
        composed.compose()  # what all forks would read and import
    for each in find_experiments(tree.files.values()):
        command = ConfigRequest(each.overrides, False, each.config_name, None, directory)
        examined = Examined(each, command)
        broken = [each.file.problem] if each.file.problem else [*misplaced(each.file)]
        if broken:
            examined.is_one = each.certain
            examined.found = [replace(one, experiments=(each.name,)) for one in broken]
            yield examined
            continue
        done = in_fork(_Examination(examined, composed, tree.files, policy).perform, LONGEST)
        if done is None:
            message = f"cannot be composed within {LONGEST:g} s"
            place = (each.file.path, each.file.line_of("defaults"), "", message, (each.name,))
            examined.found = [CheckedDiagnostic.at(WRONG, "too-large", *place)]
        yield done or examined


@dataclass
class _Examination:
    """Examines one experiment."""

    examined: Examined
    composed: Composition
    files: Mapping[str, ConfigFile]
    policy: Policy | None
    origins: Origins = field(default_factory=lambda: Origins({}))

    def perform(self) -> Examined:
        """Note everything in the result."""
        examined, experiment = self.examined, self.examined.experiment
        self.composed.config_name = experiment.config_name or PRIMARY
        known = {os.path.abspath(file.path): file for file in self.files.values()}
        repository: Any = self.composed.loader.repository
        expect = repository.expect

        def note(path: str) -> None:
            file = known.get(os.path.abspath(path))
            if file is not None:
                examined.made_of.add(file.path)
                if file.problem is not None:
                    raise ConfigError((file.problem,))
            expect(path)

        repository.expect = note
        try:
            self._examine()
        except (ConfigError, PlanRefused) as error:
            # of a file, of the policy, or of the search path, which the loader looks at
            examined.is_one = experiment.certain
            code = WRONG if isinstance(error, ConfigError) else REFUSED
            found = found_in(error.problems, experiment.file.path, code)
            examined.found += [replace(each, experiments=(experiment.name,)) for each in found]
        except Exception as error:  # noqa: BLE001 - one hostile config must not hide the others
            examined.is_one = experiment.certain
            reason = error.reason if isinstance(error, ComposeFailed) else ""
            may_be_given = re.search(HydraMessage.INCOMPLETE, reason)
            found = examined.left_open if may_be_given else examined.found
            found.append(compose_problem(error, experiment.name, experiment.file, self.files))
        return examined

    def _examine(self) -> None:
        experiment, examined = self.examined.experiment, self.examined
        cfg = self.composed.compose(experiment.overrides)
        config: Any = OmegaConf.to_container(cfg, resolve=False)
        launch = config.get("launch")
        whole = isinstance(launch, dict) and launch.get("entrypoint") is not None
        # an app of the user's own names what workers run, and may use all of the config
        users_own = experiment.config_name is not None and not whole
        given = any(map(is_set, launch.values())) if isinstance(launch, dict) else is_set(launch)
        examined.is_one = experiment.certain or given
        if not examined.is_one:
            return
        exit_code = REFUSED
        try:
            spec = self.composed.plan(cfg, entrypoint_required=not users_own)
            problems = self._refused(spec, cfg, users_own=users_own)
        except ConfigError as error:
            problems, exit_code = [*error.problems], WRONG
        unused = frozenset() if users_own else unused_keys(config)
        if problems or unused:
            # it takes as long as to compose them
            self.origins = self.composed.origins(experiment.overrides)
        if not users_own:
            examined.used = frozenset(map(str, config)) - unused
            paths = {each.path for each in self.files.values()}
            examined.unused += about_unused(unused, self.origins, paths, experiment.name)
        for problem in problems:
            # other configs may give what is not there
            may_come = exit_code == WRONG and problem.code in _MAY_COME
            found = examined.left_open if may_come else examined.found
            found.append(self._located(problem, exit_code))

    def _refused(self, spec: LaunchSpec, cfg: DictConfig, *, users_own: bool) -> list[Diagnostic]:
        """Return what is not allowed of a run, or not reviewed; note its plan."""
        examined = self.examined
        if not users_own:
            plan = examined.plan = portable_plan(spec)
            examined.plan_hash = hash_of(plan) if spec.entrypoint.text else ""
        everywhere = locks_all(os.environ) and not examined.experiment.is_preset
        locked = bool(spec.locked) or (everywhere and not users_own)
        top = tree_top(os.getcwd())
        problems = check(spec, cfg, self.policy, top, locked=locked, entrypoint=not users_own)
        if locked:
            examined.locked = bool(lock_name(spec, cfg)) and not users_own
            try:
                expect_lock(spec, cfg, users_own=users_own)
            except PlanRefused as refused:
                hint = f"\n  to write it: {refused.renew}" if refused.renew else ""
                problems += [replace(each, hint=each.hint or hint) for each in refused.problems]
        return problems

    def _located(self, problem: Diagnostic, exit_code: int) -> CheckedDiagnostic:
        """A problem with its place, and what was meant by a key that is not there."""
        missing = re.search(HydraMessage.NO_KEY, problem.message)
        if problem.code == "interpolation" and missing and not problem.hint:
            keys = [*self.origins.keys()][:_MOST_CHOICES]
            # what it is within is there, and not meant
            others = (each for each in keys if not missing[1].startswith(f"{each}."))
            problem = replace(problem, hint=did_you_mean(missing[1], others))
        if not problem.file:
            # of the key, of what it refers to, or of what it is in
            key = "launch.locked" if problem.code in _OF_LOCKS else problem.key
            origin, file = self.origins.stands_in(key), self.examined.experiment.file
            path, line = file.path, file.line_of(*parts_of(key)[:1])
            if origin is not None and origin.kind == "file":
                path, line = origin.where, origin.line or 1
            problem = replace(problem, file=path, line=line)
        return CheckedDiagnostic.of(problem, exit_code, (self.examined.experiment.name,))


ROOTS = ("launch", "cluster", "hydra")
"""Top-level keys that count by themselves."""

_MEANT = (*ROOTS, "defaults")
# so few letters differ that nothing else can be meant
_ALIKE = 0.75


def unused_keys(config: Mapping[Any, Any]) -> frozenset[str]:
    """Return the top-level keys beside `ROOTS` that nothing outside of them refers to."""
    referred: set[str] = set()
    for name, node in config.items():
        for path, leaf in leaf_items(node, (name,)):
            tops = {key.partition(".")[0] for key in may_refer_to(leaf, path)}
            if "" in tops:
                return frozenset()  # made up: any key may be meant
            referred |= tops - {str(name)}
    return frozenset(map(str, config)) - referred - {*ROOTS}


def about_unused(
    unused: Iterable[str], origins: Origins, files: Collection[str], experiment: str
) -> Iterator[CheckedDiagnostic]:
    """Tells which files give top-level keys that an experiment does not use."""
    for key in sorted(unused):
        origin = origins.of(dotted([key]))
        if origin is not None and origin.kind == "file" and origin.where in files:
            place = (origin.where, origin.line or 1, key, _message(key), (experiment,))
            yield CheckedDiagnostic.at(0, "unused-key", *place)


def told_unused(examined: Collection[Examined]) -> Iterator[CheckedDiagnostic]:
    """Tells which top-level keys no experiment uses."""
    used = {(key, file) for each in examined for key in each.used for file in each.made_of}
    for each in examined:
        yield from (found for found in each.unused if (found.key, found.file) not in used)


def _message(key: str) -> str:
    meant = difflib.get_close_matches(key.lower(), _MEANT, n=1, cutoff=_ALIKE)
    if meant:
        return f"is no key that lllaunch or Hydra knows; did you mean {meant[0]!r}?"
    text = "has no effect: nothing under launch refers to it"
    return f"{text}; did you mean 'launch.{key}'?" if key in KEYS else text
