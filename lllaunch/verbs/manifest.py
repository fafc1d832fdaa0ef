"""``plan --format trainjob``: a TrainJob of Kubeflow Trainer that runs a plan on Kubernetes.

Fields are those of ``trainer.kubeflow.org/v1alpha1``. Its controller starts one pod for each node,
in which it sets what ``launch.nnodes=auto`` reads (`lllaunch.cluster.detect`): PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT and PET_NPROC_PER_NODE. A TrainJob that names one of
these five itself is refused, another PET_* is not. ``numProcPerNode`` is a number; older versions
took words, too, which the runtime's own default stands for. Kubernetes itself checks names, images
and numbers.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.app.compose import Composition, ConfigRequest, Reviewed, located, review_run
from lllaunch.app.configs import experiment_name, unlocked
from lllaunch.app.gate import admit
from lllaunch.app.planning import expect_quoted, locating
from lllaunch.cluster.values import format_nnodes
from lllaunch.config.fields import Findings
from lllaunch.config.nodes import read_nnodes
from lllaunch.config.plan import plan_node
from lllaunch.config.read import Reader, watching
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.review.lock import PlanRefused, lock_path, name_problem, renew_command
from lllaunch.review.paths import locks_all
from lllaunch.secret_names import Redactor, redacted_overrides
from lllaunch.spec import LaunchSpec
from lllaunch.verbs.printing import print_lines

_AUTO = "launch.nnodes=auto"
_KIND = "ClusterTrainingRuntime"
_RUNTIME = "torch-distributed"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Kubernetes makes the names of pods, labels of DNS, from that of the job.
_LONGEST_LABEL = 63
# What Kubernetes would take for a variable of its own, or for an escape of one.
_EXPANDED = re.compile(r"\$(?=[$(])")


def add_manifest_flags(parser: argparse.ArgumentParser) -> None:
    """Lets `plan` take what a manifest needs and no config says."""
    group = parser.add_argument_group("for --format trainjob")
    group.add_argument("--image", metavar="IMAGE", help="image of the pods; default: the runtime's")
    group.add_argument(
        "--runtime",
        metavar="[KIND/]NAME",
        help=f"the training runtime; default: {_RUNTIME}. KIND is ClusterTrainingRuntime, or"
        " TrainingRuntime for one of the namespace",
    )
    group.add_argument(
        "--nodes", metavar="N", type=int, help="the number of nodes; default: launch.nnodes"
    )


def manifest_flags(given: argparse.Namespace) -> dict[str, str]:
    """Returns those of a manifest's options that were given."""
    names = ("image", "runtime", "nodes")
    return {
        f"--{name}": str(value) for name in names if (value := getattr(given, name)) is not None
    }


def show_trainjob(command: ConfigRequest, given: argparse.Namespace) -> None:
    """Prints a TrainJob that runs a plan.

    Raises:
        ConfigError: something is wrong.
        PlanRefused: the plan is locked, or has a lock, and is not the reviewed one; or its project
            does not allow it.
        ComposeFailed: Hydra cannot compose it.
    """
    findings, flags = Findings(), manifest_flags(given)
    for flag, wrong in (("--lock", given.lock), ("--diff", given.diff)):
        if wrong:
            findings.add_about(flag, "is not for --format trainjob", code="trainjob")
    findings.raise_if_any()
    experiment, nodes = _look_ahead(command, given.nodes)
    others = (
        text for text in command.overrides if text.lstrip("+~").partition("=")[0] != "launch.nnodes"
    )
    auto = command._replace(overrides=(*others, _AUTO))
    with Composition(auto) as composed:
        with watching("oc.env") as variables:
            reviewed = review_run(composed)
        problems = located([reviewed], _misfits)
        name = given.name or name_for(experiment or reviewed.name, nodes)
        if not name:
            message = "has no name that it could be made from"
            nameless = Diagnostic("trainjob", "", "the TrainJob", message, "give --name NAME")
            problems = (*problems, nameless)
        if problems:
            raise ConfigError(problems)
        locked = _admit(composed, reviewed)
    spec = reviewed.spec
    own = reviewed.config["hydra"]["job"]["env_set"]
    options = [word for option in flags.items() for word in option]
    options += [] if given.name is None else ["--name", given.name]
    words = ("python", "-m", "lllaunch", "plan", "--format", "trainjob", *options)
    told = shlex.join([*words, *_words(command, spec)])
    # a line break in it would end the comment
    made_by = f"# Made by: {told}" if told.isprintable() and told.isascii() else ""
    trainer = _trainer(spec, given.image, nodes, _words(auto, spec))
    env = []
    if nodes > 1 and plan_node(spec)["launch"]["rdzv"]["id"] is None:
        env.append({"name": "PET_RDZV_ID", "value": name})
    if locked:
        env.append({"name": "LLLAUNCH_LOCKED", "value": "1"})
    if env:
        trainer["env"] = env
    kind, _, runtime = (given.runtime or _RUNTIME).rpartition("/")
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": kind or _KIND, "name": runtime}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }
    if made_by:
        print_lines([made_by])
    if given.image is None:
        needs = "lllaunch, and the project as working directory"
        print_lines([f"# No --image: the runtime's must have {needs}."])
    print_lines(yaml.safe_dump(manifest, sort_keys=False, width=1_000_000).splitlines())
    names = (each for each in dict.fromkeys(variables) if each not in own)
    asked = [each for each in names if _VARIABLE.fullmatch(each)]
    print_lines(_hints(asked, name, has_env=bool(env)))


def _trainer(
    spec: LaunchSpec, image: str | None, nodes: int, words: tuple[str, ...]
) -> dict[str, Any]:
    nproc = _nproc(spec)
    trainer: dict[str, Any] = {} if image is None else {"image": image}
    trainer |= {
        "command": ["python", "-m", "lllaunch"],
        "args": [_EXPANDED.sub("$$", word) for word in words],
        "numNodes": nodes,
    }
    if nproc is None:
        return trainer
    gpus, cpus = ((each or 0) * nproc for each in spec.resources)
    # a GPU's request is its limit; a limit of CPU would only slow a pod
    resources = {"requests": {"cpu": str(cpus)}} if cpus else {}
    resources |= {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return (
        trainer | {"numProcPerNode": nproc} | ({"resourcesPerNode": resources} if resources else {})
    )


def _hints(variables: list[str], name: str, *, has_env: bool) -> Iterator[str]:
    """Yield comments that become the end of the trainer's environment."""
    if not variables:
        return
    yield "# The config takes these from the environment of the pods. If neither image nor"
    yield "# runtime gives them, a Secret may: take the # away."
    if not has_env:
        yield "#    env:"
    for variable in variables:
        yield f"#    - name: {variable}"
        yield f"#      valueFrom: {{secretKeyRef: {{name: {name}, key: {variable}}}}}"


def _look_ahead(command: ConfigRequest, nodes: int | None) -> tuple[str, int]:
    """Return the experiment, and the nodes before they are left to the pods."""
    findings = Findings()
    with Composition(command) as composed:
        if composed.is_sweep():
            message = "is for sweeps, and a TrainJob is one run"
            findings.add_about("-m", message, code="trainjob")
            findings.raise_if_any()
        config = composed.compose()
        if nodes is None:
            with locating(composed.loader, config):
                expect_quoted(config)
                written = Reader(findings).read_items(config.launch, "launch", ["nnodes"])
                count = findings.attempt(
                    "launch.nnodes",
                    written.get("nnodes"),
                    lambda n: read_nnodes(1 if n is None else n),
                )
                if isinstance(count, str) or (count and count[0] != count[1]):
                    shown = count if isinstance(count, str) else format_nnodes(*count)
                    message = "is no one number, which a TrainJob needs"
                    hint = "give --nodes N"
                    findings.note(
                        Diagnostic("trainjob", "launch.nnodes", repr(shown), message, hint)
                    )
                findings.raise_if_any()
                nodes = count[1] if isinstance(count, tuple) else 1
        return experiment_name(config), nodes


def name_for(experiment: str, nodes: int) -> str:
    """Return a name for the TrainJob of an experiment; empty if nothing of it could be one."""
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"run-{name}"
    return name[: _LONGEST_LABEL - len(f"-node-0-{nodes - 1}-abcde")].rstrip("-")


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


def _admit(composed: Composition, reviewed: Reviewed) -> bool:
    """Let a manifest be made of what may run in the pods; return whether that is locked."""
    spec, name = reviewed.spec, reviewed.name
    locked = bool(spec.locked) or locks_all(os.environ)
    if not locked and name and not name_problem(name):
        locked = os.path.lexists(lock_path(os.getcwd(), name))
    config = composed.compose()
    try:
        with locating(composed.loader, config):
            admit(replace(spec, locked=spec.locked or locked), config)
    except PlanRefused as refused:
        if not refused.renew:
            raise
        # the lock itself knows the command that it was made with, which may be for one node
        named = ["--name", spec.locked] if isinstance(spec.locked, str) else []
        clean = unlocked(redacted_overrides(composed.command.overrides))
        words = composed.command._replace(overrides=clean).words
        raise replace(refused, renew=renew_command([*named, *words])) from None
    return locked


def _words(command: ConfigRequest, spec: LaunchSpec) -> tuple[str, ...]:
    """Return a command line without secrets."""
    clean = command._replace(overrides=redacted_overrides(command.overrides))
    return tuple(map(Redactor.of(spec), clean.words))
