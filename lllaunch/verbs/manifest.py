"""``plan --format trainjob``: what is asked for, the plan that the pods will run, and its lock."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from lllaunch.app.composed import Composition, ConfigRequest
from lllaunch.app.gate import admit
from lllaunch.app.naming import experiment_name, unlocked
from lllaunch.app.planning import expect_quoted, locating
from lllaunch.app.reviewed import Reviewed, located, review_run
from lllaunch.cluster.values import format_nnodes
from lllaunch.config.fields import Findings
from lllaunch.config.nodes import count_ahead
from lllaunch.config.plan import plan_node
from lllaunch.config.read import watching
from lllaunch.config.secrets import redacted_overrides
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.review.lock import lock_path, name_problem, renew_command
from lllaunch.review.paths import locks_all
from lllaunch.review.refused import PlanRefused
from lllaunch.review.trainjob import (
    Runtime,
    fixed_count,
    manifest,
    name_for,
    parse_nodes,
    parse_runtime,
)
from lllaunch.run.redact import Redactor
from lllaunch.spec import LaunchSpec
from lllaunch.verbs.printing import print_lines

_AUTO = "launch.nnodes=auto"

_T = TypeVar("_T")


def add_manifest_flags(parser: argparse.ArgumentParser) -> None:
    """Lets `plan` take what a manifest needs and no config says."""
    group = parser.add_argument_group("for --format trainjob")
    group.add_argument("--image", metavar="IMAGE", help="image of the pods; default: the runtime's")
    group.add_argument(
        "--runtime",
        metavar="[KIND/]NAME",
        help=f"the training runtime; default: {Runtime().name}. KIND is ClusterTrainingRuntime, or"
        " TrainingRuntime for one of the namespace",
    )
    group.add_argument("--nodes", metavar="N", help="the number of nodes; default: launch.nnodes")


def manifest_flags(given: argparse.Namespace) -> dict[str, str]:
    """Returns those of a manifest's options that were given."""
    names = ("image", "runtime", "nodes")
    return {f"--{name}": value for name in names if (value := getattr(given, name)) is not None}


def show_trainjob(command: ConfigRequest, given: argparse.Namespace) -> None:
    """Prints a TrainJob that runs a plan.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
        PlanRefused: the plan is locked, or has a lock, and is not the reviewed one; or its project
            does not allow it.
        ComposeFailed: Hydra cannot compose it.
    """
    problems: list[Diagnostic] = []
    asked = _read_options(given, problems)
    experiment, nodes = _look_ahead(command, asked, problems)
    others = (
        text for text in command.overrides if text.lstrip("+~").partition("=")[0] != "launch.nnodes"
    )
    auto = command._replace(overrides=(*others, _AUTO))
    with Composition(auto) as composed:
        with _collecting(problems), watching("oc.env") as variables:
            reviewed = review_run(composed)
            problems += located([reviewed], _misfits)
            name = _name(asked, experiment or reviewed.name, nodes, problems)
        if problems:
            raise ConfigError(tuple(dict.fromkeys(problems)))
        locked = _is_locked(reviewed)
        _admit(composed, reviewed, locked=locked)
    spec = reviewed.spec
    nproc, rdzv = _nproc(spec), plan_node(spec)["launch"]["rdzv"]
    gpus, cpus = ((each or 0) * (nproc or 0) for each in spec.resources)
    own = reviewed.config["hydra"]["job"]["env_set"]
    lines = manifest(
        name=name,
        command=("python", "-m", "lllaunch", "plan", *asked.words, *_words(command, spec)),
        args=_words(auto, spec),
        nodes=nodes,
        nproc=nproc,
        gpus=gpus,
        cpus=cpus,
        image=asked.image,
        runtime=asked.runtime,
        locked=locked,
        rdzv_id="" if nodes == 1 or rdzv["id"] is not None else name,
        variables=[each for each in variables if each not in own],
    )
    print_lines(lines)


class _ManifestOptions(NamedTuple):
    """What the command line says of a manifest; ``words`` is all of it."""

    name: str | None
    nodes: int | None
    image: str
    runtime: Runtime
    words: tuple[str, ...]


@contextlib.contextmanager
def _collecting(problems: list[Diagnostic]) -> Iterator[None]:
    """What is wrong with a config is told with all the rest."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _read_options(given: argparse.Namespace, problems: list[Diagnostic]) -> _ManifestOptions:
    findings = Findings()
    for flag, wrong in (("--lock", given.lock), ("--diff", given.diff)):
        if wrong:
            findings.add_about(flag, "is not for --format trainjob", code="trainjob")
    flags = manifest_flags(given)

    def read(flag: str, parse: Callable[[str], _T], default: _T) -> _T:
        found = findings.attempt(flag, flags[flag], parse) if flag in flags else None
        return default if found is None else found

    asked = _ManifestOptions(
        name=given.name,
        nodes=read("--nodes", parse_nodes, 0) or None,
        image=flags.get("--image", ""),
        runtime=read("--runtime", parse_runtime, Runtime()),
        words=("--format", "trainjob", *(word for option in flags.items() for word in option)),
    )
    problems += findings.problems
    if given.name is None:
        return asked
    return asked._replace(words=(*asked.words, "--name", given.name))


def _look_ahead(
    command: ConfigRequest, asked: _ManifestOptions, problems: list[Diagnostic]
) -> tuple[str, int]:
    """Return the experiment, and the nodes before they are left to the pods, 1 if not known."""
    with Composition(command) as composed:
        if composed.is_sweep():
            message = "is for sweeps, and a TrainJob is one run"
            raise ConfigError((*problems, Diagnostic("trainjob", "-m", "", message)))
        config = composed.compose()
        findings = Findings()
        nodes = asked.nodes
        with _collecting(problems), locating(composed.loader, config):
            expect_quoted(config)
            count = count_ahead(config, findings)
            if count is not None and nodes is None:
                text = count if isinstance(count, str) else format_nnodes(*count)
                nodes = findings.attempt("launch.nnodes", text, lambda _: fixed_count(count))
            findings.raise_if_any()
        return experiment_name(config), nodes or 1


def _name(asked: _ManifestOptions, default: str, nodes: int, problems: list[Diagnostic]) -> str:
    """Return the name of the TrainJob; notes what is wrong with it."""
    found = name_for(default if asked.name is None else asked.name, nodes)
    if asked.name is not None and found != asked.name:
        hint = f"did you mean {found!r}?" if found else ""
        expected = "a name for a TrainJob (small letters, digits and -, the first a letter)"
        problems.append(Diagnostic("trainjob", "--name", asked.name, "", hint, expected=expected))
    elif not found:
        message = "has no name that it could be made from"
        problems.append(Diagnostic("trainjob", "", "the TrainJob", message, "give --name NAME"))
    return found


def _misfits(reviewed: Reviewed) -> Iterator[Diagnostic]:
    """Yield what a config says that no TrainJob can, or that it says itself."""
    spec = reviewed.spec
    launch = plan_node(spec)["launch"]
    rank, rdzv = launch["node_rank"], launch["rdzv"]
    if rank is not None:
        message = "would be the number of every pod"
        hint = "leave it out, or add launch.node_rank=null"
        yield Diagnostic("trainjob", "launch.node_rank", repr(rank), message, hint)
    if rdzv["endpoint"] is not None and rdzv["backend"] != "etcd-v2":
        message = "is not where pods meet: the TrainJob says where its first one is"
        hint = "leave it out, or add launch.rdzv.endpoint=null"
        yield Diagnostic("trainjob", "launch.rdzv.endpoint", repr(rdzv["endpoint"]), message, hint)
    if any(spec.resources) and _nproc(spec) is None:
        message = "is what each worker needs, and how many a pod has is not known"
        hint = "give launch.nproc as a number"
        yield Diagnostic("trainjob", "launch.resources", "", message, hint)


def _nproc(spec: LaunchSpec) -> int | None:
    """Return the number of workers of a node, None where something else decides on it."""
    return None if ("nproc",) in spec.sources else spec.nproc


def _is_locked(reviewed: Reviewed) -> bool:
    """Whether pods shall run the reviewed plan alone: if it is asked for, or if there is one."""
    if reviewed.spec.locked or locks_all(os.environ):
        return True
    name = reviewed.name
    known = bool(name) and name_problem(name) is None
    return known and os.path.lexists(lock_path(os.getcwd(), name))


def _admit(composed: Composition, reviewed: Reviewed, *, locked: bool) -> None:
    """Let a manifest be made of what may run in the pods."""
    config = composed.compose()
    spec = replace(reviewed.spec, locked=reviewed.spec.locked or locked)
    try:
        with locating(composed.loader, config):
            admit(spec, config)
    except PlanRefused as refused:
        if not refused.renew:
            raise
        # the lock itself knows the command that it was made with, which may be for one node
        name = ["--name", spec.locked] if isinstance(spec.locked, str) else []
        clean = unlocked(redacted_overrides(composed.command.overrides))
        words = composed.command._replace(overrides=clean).words
        raise replace(refused, renew=renew_command([*name, *words])) from None


def _words(command: ConfigRequest, spec: LaunchSpec) -> tuple[str, ...]:
    """Return a command line without secrets."""
    clean = command._replace(overrides=redacted_overrides(command.overrides))
    return tuple(map(Redactor.of(spec), clean.words))
