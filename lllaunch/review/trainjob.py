"""A TrainJob of Kubeflow Trainer as text: what runs a plan on several nodes of Kubernetes. Pure.

Fields are those of ``trainer.kubeflow.org/v1alpha1``. Its controller starts one pod for each node,
in which it sets what ``launch.nnodes=auto`` reads (`lllaunch.cluster.detect`): PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT and PET_NPROC_PER_NODE. A TrainJob that names one of
these five itself is refused, another PET_* is not. ``numProcPerNode`` is a number; older versions
took words, too, which the runtime's own default stands for.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.cluster.values import MOST_NODES
from lllaunch.config.fields import did_you_mean
from lllaunch.errors import Unfit
from lllaunch.review.lock import VisibleDumper

API_VERSION = "trainer.kubeflow.org/v1alpha1"

_API_GROUP = "trainer.kubeflow.org"
_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_LONGEST_IMAGE = 500
_NAME = "a name for a TrainJob (small letters, digits and -, the first a letter"
# What Kubernetes would take for a variable of its own, or for an escape of one.
_EXPANDED = re.compile(r"\$(?=[$(])")


class Runtime(NamedTuple):
    """The runtime that a TrainJob is made from."""

    name: str = "torch-distributed"
    kind: str = _KINDS[0]


@dataclass(frozen=True)
class TrainJob:
    """What a manifest is made of.

    Attributes:
        nproc: number of workers of each; None if the config leaves that to the runtime or to the
            pod.
        gpus: that each node needs; 0 if the config does not say.
        locked: whether the pods are to start nothing but the reviewed plan.
        rdzv_id: what the nodes have in common; empty where the config says it, or there is one.
    """

    name: str
    command: Sequence[str]
    args: Sequence[str]
    nodes: int
    nproc: int | None = None
    gpus: int = 0
    cpus: int = 0
    image: str = ""
    runtime: Runtime = field(default_factory=Runtime)
    locked: bool = False
    rdzv_id: str = ""
    variables: Sequence[str] = ()


def longest_name(nodes: int) -> int:
    """Return how long the name of a TrainJob may be: those of its pods are made from it.

    They are labels of DNS: ``NAME-node-0-INDEX`` and five characters more.
    """
    return _LONGEST_LABEL - len(f"-node-0-{nodes - 1}-abcde")


def parse_name(text: str, nodes: int) -> str:
    """Reads the name of a TrainJob.

    Raises:
        Unfit: it is none.
    """
    most = longest_name(nodes)
    if len(text) > most or not _LABEL.fullmatch(text):
        suggested = name_for(text, nodes)
        hint = f"did you mean {suggested!r}?" if suggested else ""
        raise Unfit(f"{_NAME}, {most} characters at most)", hint, code="trainjob")
    return text


def name_for(experiment: str, nodes: int) -> str:
    """Return a name for the TrainJob of an experiment; empty if nothing of it could be one."""
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"run-{name}"
    return name[: longest_name(nodes)].rstrip("-")


def parse_runtime(text: str) -> Runtime:
    """Reads ``NAME`` or ``KIND/NAME``, as kubectl writes it.

    Raises:
        Unfit: it is neither.
    """
    before, slash, name = text.rpartition("/")
    kind = next((kind for kind in _KINDS if kind.lower() == before.lower()), before)
    expected = f"a runtime (NAME, or {' or '.join(f'{kind}/NAME' for kind in _KINDS)})"
    if slash and kind not in _KINDS:
        raise Unfit(expected, did_you_mean(before, _KINDS), code="trainjob")
    if len(name) > _LONGEST_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
        raise Unfit(expected, code="trainjob")
    return Runtime(name, kind if slash else _KINDS[0])


def parse_image(text: str) -> str:
    """Reads the name of an image.

    Raises:
        Unfit: it can be none.
    """
    blank = any(char.isspace() or not char.isprintable() for char in text)
    if not text or blank or len(text) > _LONGEST_IMAGE:
        raise Unfit("an image (registry.example.com/team/train:v3)", code="trainjob")
    return text


def parse_nodes(text: str) -> int:
    """Reads the number of nodes.

    Raises:
        Unfit: it is none.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not 1 <= int(text) <= MOST_NODES:
        raise Unfit("a number of nodes (1, 2, ...)", code="trainjob")
    return int(text)


def fixed_count(counts: str | tuple[int, int]) -> int:
    """Return the one number of nodes that a config says.

    Raises:
        Unfit: it says no one number.
    """
    if isinstance(counts, str):
        raise Unfit(
            "a number of nodes, as the TrainJob is what says it to the others",
            "give --nodes N",
            code="trainjob",
        )
    least, most = counts
    if least != most:
        raise Unfit(
            "one number of nodes, as a TrainJob has no range",
            f"give --nodes N, such as {most}",
            code="trainjob",
        )
    return most


def manifest(job: TrainJob) -> Iterator[str]:
    """Yield the lines of a manifest, in ASCII."""
    yield from (f"# {line}" for line in _head_comments(job))
    yield from _dumped(_document(job))
    yield from _of_environment(job)


def _document(job: TrainJob) -> dict[str, Any]:
    env = []
    if job.rdzv_id:
        env.append({"name": "PET_RDZV_ID", "value": _Quoted(job.rdzv_id)})
    if job.locked:
        env.append({"name": "LLLAUNCH_LOCKED", "value": _Quoted("1")})
    trainer = {
        "image": _Quoted(job.image) if job.image else None,
        "command": [_Quoted(word) for word in ("python", "-m", "lllaunch")],
        "args": [_Quoted(_EXPANDED.sub("$$", word)) for word in job.args],
        "numNodes": job.nodes,
        "numProcPerNode": job.nproc,
        "resourcesPerNode": _resources(job),
        "env": env,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {
                "apiGroup": _API_GROUP,
                "kind": job.runtime.kind,
                "name": job.runtime.name,
            },
            "trainer": {name: value for name, value in trainer.items() if value},
        },
    }


def _resources(job: TrainJob) -> dict[str, Any]:
    """What a node asks for; a GPU's request is its limit, a limit of CPU would only slow it."""
    requests = {"cpu": _Quoted(str(job.cpus))} if job.cpus else {}
    limits = {"nvidia.com/gpu": _Quoted(str(job.gpus))} if job.gpus else {}
    both = {"requests": requests, "limits": limits}
    return {name: value for name, value in both.items() if value}


def _head_comments(job: TrainJob) -> Iterator[str]:
    told = shlex.join(job.command)
    if told.isprintable() and told.isascii():
        # a line break in it would end the comment
        yield f"Made by: {told}"
    if not job.image:
        yield "No --image: the runtime's must have lllaunch, and the project as working directory."
    if job.nproc is None:
        yield "launch.nproc is no number: the pods decide how many workers each has."
    if not job.gpus and not job.cpus:
        yield "launch.resources says nothing: the runtime decides what a pod gets."


def _of_environment(job: TrainJob) -> Iterator[str]:
    """Yield as comments what the pods' environment must have; where from only a cluster knows."""
    names = [name for name in dict.fromkeys(job.variables) if _VARIABLE.fullmatch(name)]
    if not names:
        return
    yield "# The config takes these from the environment of the pods. If neither image nor runtime"
    yield "# gives them, a Secret may: take the # away."
    if not job.rdzv_id and not job.locked:
        yield "#    env:"
    for name in names:
        yield f"#    - name: {name}"
        yield f"#      valueFrom: {{secretKeyRef: {{name: {job.name}, key: {name}}}}}"


class _Quoted(str):
    """Text that no reader of YAML takes for anything else."""

    __slots__ = ()


class _Dumper(VisibleDumper):
    """Quotes what Kubernetes is to take for text."""


def _represent(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')


_Dumper.add_representer(_Quoted, _represent)


def _dumped(document: Mapping[str, Any]) -> list[str]:
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=False,
        width=1_000_000,
    )
    return text.splitlines()
