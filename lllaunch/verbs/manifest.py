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
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from msgspec import structs
from omegaconf import OmegaConf

from lllaunch.app.compose import Composition, ConfigRequest, Reviewed, located, review_run
from lllaunch.app.gate import admit
from lllaunch.app.planning import locating, unlocked
from lllaunch.config.plan import plan_node
from lllaunch.config.read import watching
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.review.lock import lock_path, name_problem, renew_command
from lllaunch.review.paths import PlanRefused, locks_all
from lllaunch.secret_names import redacted_overrides, redactor_for
from lllaunch.verbs.printing import print_lines

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.spec import LaunchSpec

_AUTO = "launch.nnodes=auto"
_KIND = "ClusterTrainingRuntime"
_RUNTIME = "torch-distributed"
# Kubernetes makes the names of pods, labels of DNS of at most 63 characters, from that of the job.
_LONGEST = 40
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


def show_trainjob(command: ConfigRequest, given: argparse.Namespace) -> None:
    """Prints a TrainJob that runs a plan.

    Raises:
        ConfigError: something is wrong.
        PlanRefused: the plan is locked, or has a lock, and is not the reviewed one; or its project
            does not allow it.
        ComposeFailed: Hydra cannot compose it.
    """
    composed = Composition(command)
    if composed.is_sweep():
        raise ConfigError((_problem("-m", "", "is for sweeps, and a TrainJob is one run"),))
    config = composed.compose()
    with locating(composed.loader, config):
        # the pods are told to ask their environment instead
        nodes = _nodes(config) if given.nodes is None else given.nodes
    keys = {text: text.lstrip("+~").partition("=")[0] for text in command.overrides}
    others = (text for text, key in keys.items() if key != "launch.nnodes")
    auto = command._replace(overrides=(*others, _AUTO))
    composed = Composition(auto)
    with watching("oc.env") as variables:
        reviewed = review_run(composed)
    if problems := located([reviewed], _misfits):
        raise ConfigError(problems)
    name = given.name or name_for(reviewed.name)
    if not name:
        message = "has no name that it could be made from"
        raise ConfigError((_problem("the TrainJob", "", message, "give --name NAME"),))
    locked = _admit(composed, reviewed)
    spec, hide = reviewed.spec, redactor_for(reviewed.spec)

    def words(request: ConfigRequest) -> list[str]:
        clean = request._replace(overrides=redacted_overrides(request.overrides))
        return [hide(word) for word in clean.words]

    options = {"--image": given.image, "--runtime": given.runtime, "--nodes": given.nodes}
    options["--name"] = given.name
    told = [word for flag, value in options.items() if value for word in (flag, str(value))]
    made_by = shlex.join(["plan", "--format", "trainjob", *told, *words(command)])
    env = {"PET_RDZV_ID": name} if nodes > 1 and _launch(spec)["rdzv"]["id"] is None else {}
    env |= {"LLLAUNCH_LOCKED": "1"} if locked else {}
    trainer: dict[str, Any] = {
        **({"image": given.image} if given.image else {}),
        "command": ["python", "-m", "lllaunch"],
        "args": [_EXPANDED.sub("$$", word) for word in words(auto)],
        "numNodes": nodes,
        **_of_node(spec),
        **({"env": [{"name": key, "value": text} for key, text in env.items()]} if env else {}),
    }
    kind, _, runtime = (given.runtime or _RUNTIME).rpartition("/")
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": kind or _KIND, "name": runtime}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }
    # a line break in it would end the comment
    if made_by.isprintable() and made_by.isascii():
        print_lines([f"# Made by: python -m lllaunch {made_by}"])
    if not given.image:
        needs = "lllaunch, and the project as working directory"
        print_lines([f"# No --image: the runtime's must have {needs}."])
    print_lines(yaml.safe_dump(manifest, sort_keys=False, width=10**6).splitlines())
    asked = ", ".join(each for each in dict.fromkeys(variables) if each.isprintable())
    if asked:
        where = "from spec.trainer.env, the image or the runtime"
        print_lines([f"# The pods need these, {where}: {asked}"])


def _launch(spec: LaunchSpec) -> dict[str, Any]:
    node: dict[str, Any] = plan_node(spec)["launch"]
    return node


def _of_node(spec: LaunchSpec) -> dict[str, Any]:
    """Return what a pod runs and needs; nothing if it decides itself how many workers it has."""
    if ("nproc",) in spec.sources:
        return {}
    gpus, cpus = ((each or 0) * spec.nproc for each in spec.resources)
    # a GPU's request is its limit; a limit of CPU would only slow a pod
    resources = {"requests": {"cpu": str(cpus)}} if cpus else {}
    resources |= {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    of_workers = {"numProcPerNode": spec.nproc}
    return of_workers | ({"resourcesPerNode": resources} if resources else {})


def _problem(key: str, value: str, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic("trainjob", key, value, message, hint)


def _nodes(config: DictConfig) -> int:
    """Return the number of nodes that a config says."""
    count = OmegaConf.select(config, "launch.nnodes", throw_on_resolution_failure=False)
    if isinstance(count, int | None):
        return 1 if count is None else count
    message = "is no one number, which a TrainJob needs"
    raise ConfigError((_problem("launch.nnodes", repr(count), message, "give --nodes N"),))


def name_for(experiment: str) -> str:
    """Return a name for the TrainJob of an experiment; empty if nothing of it could be one."""
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"run-{name}"
    return name[:_LONGEST].rstrip("-")


def _misfits(reviewed: Reviewed) -> Iterator[Diagnostic]:
    """Yield what a config says that the pods are told otherwise."""
    launch = _launch(reviewed.spec)
    rank, rdzv = launch["node_rank"], launch["rdzv"]
    if rank is not None:
        message = "would be the number of every pod"
        hint = "leave it out, or add launch.node_rank=null"
        yield _problem("launch.node_rank", repr(rank), message, hint)
    if rdzv["endpoint"] is not None and rdzv["backend"] != "etcd-v2":
        message = "is not where pods meet: the TrainJob says where its first one is"
        hint = "leave it out, or add launch.rdzv.endpoint=null"
        yield _problem("launch.rdzv.endpoint", repr(rdzv["endpoint"]), message, hint)


def _admit(composed: Composition, reviewed: Reviewed) -> bool:
    """Let a manifest be made of what may run in the pods; return whether that is locked."""
    spec, name = reviewed.spec, reviewed.name
    locked = bool(spec.locked) or locks_all(os.environ)
    if not locked and name and not name_problem(name):
        locked = os.path.lexists(lock_path(os.getcwd(), name))
    config = composed.compose()
    try:
        with locating(composed.loader, config):
            admit(structs.replace(spec, locked=spec.locked or locked), config)
    except PlanRefused as refused:
        if not refused.renew:
            raise
        # the lock itself knows the command that it was made with, which may be for one node
        named = ["--name", spec.locked] if isinstance(spec.locked, str) else []
        clean = unlocked(redacted_overrides(composed.command.overrides))
        words = composed.command._replace(overrides=clean).words
        raise replace(refused, renew=renew_command([*named, *words])) from None
    return locked
