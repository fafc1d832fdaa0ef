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
from collections.abc import Sequence
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.cluster.values import MOST_NODES
from lllaunch.errors import Unfit

API_VERSION = "trainer.kubeflow.org/v1alpha1"

_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Kubernetes makes the names of pods, labels of DNS, from that of the job.
_LONGEST_LABEL = 63
# What Kubernetes would take for a variable of its own, or for an escape of one.
_EXPANDED = re.compile(r"\$(?=[$(])")

_MANIFEST = """\
{% if made_by %}
# Made by: {{ made_by }}
{% endif %}
{% if not image %}
# No --image: the runtime's must have lllaunch, and the project as working directory.
{% endif %}
{% if nproc is none %}
# launch.nproc is no number: the pods decide how many workers each has.
{% endif %}
{% if not gpus and not cpus %}
# launch.resources says nothing: the runtime decides what a pod gets.
{% endif %}
apiVersion: {{ version }}
kind: TrainJob
metadata:
  name: {{ name }}
spec:
  runtimeRef:
    apiGroup: {{ version.partition("/")[0] }}
    kind: {{ runtime.kind }}
    name: {{ runtime.name | plain }}
  trainer:
{% if image %}
    image: {{ image | quoted }}
{% endif %}
    command:
    - "python"
    - "-m"
    - "lllaunch"
    args:
{% for word in args %}
    - {{ word | quoted }}
{% endfor %}
    numNodes: {{ nodes }}
{% if nproc is not none %}
    numProcPerNode: {{ nproc }}
{% endif %}
{% if gpus or cpus %}
    resourcesPerNode:
{% endif %}
{# a GPU's request is its limit; a limit of CPU would only slow a pod #}
{% if cpus %}
      requests:
        cpu: "{{ cpus }}"
{% endif %}
{% if gpus %}
      limits:
        nvidia.com/gpu: "{{ gpus }}"
{% endif %}
{% if rdzv_id or locked %}
    env:
{% endif %}
{% if rdzv_id %}
    - name: PET_RDZV_ID
      value: {{ rdzv_id | quoted }}
{% endif %}
{% if locked %}
    - name: LLLAUNCH_LOCKED
      value: "1"
{% endif %}
{% if variables %}
# The config takes these from the environment of the pods. If neither image nor runtime
# gives them, a Secret may: take the # away.
{% if not rdzv_id and not locked %}
#    env:
{% endif %}
{% endif %}
{% for variable in variables %}
#    - name: {{ variable }}
#      valueFrom: {secretKeyRef: {name: {{ name }}, key: {{ variable }}}}
{% endfor %}
"""


class Runtime(NamedTuple):
    """The runtime that a TrainJob is made from."""

    name: str = "torch-distributed"
    kind: str = _KINDS[0]


def name_for(experiment: str, nodes: int) -> str:
    """Return a name for the TrainJob of an experiment; empty if nothing of it could be one."""
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"run-{name}"
    return name[: _LONGEST_LABEL - len(f"-node-0-{nodes - 1}-abcde")].rstrip("-")


def parse_runtime(text: str) -> Runtime:
    """Read ``NAME`` or ``KIND/NAME``, as kubectl writes it, or raise `Unfit`."""
    before, slash, name = text.rpartition("/")
    kinds = [kind for kind in _KINDS if not slash or kind.lower() == before.lower()]
    if not kinds or not name:
        forms = " or ".join(f"{kind}/NAME" for kind in _KINDS)
        raise Unfit(f"a runtime (NAME, or {forms})", code="trainjob")
    return Runtime(name, kinds[0])


def parse_nodes(text: str) -> int:
    """Read the number of nodes, or raise `Unfit`."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not 1 <= int(text) <= MOST_NODES:
        raise Unfit("a number of nodes (1, 2, ...)", code="trainjob")
    return int(text)


def fixed_count(counts: str | tuple[int, int]) -> int:
    """Return the one number of nodes that a config says, or raise `Unfit`."""
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


def manifest(
    *,
    name: str,
    command: Sequence[str],
    args: Sequence[str],
    nodes: int,
    nproc: int | None,
    gpus: int,
    cpus: int,
    image: str,
    runtime: Runtime,
    locked: bool,
    rdzv_id: str,
    variables: Sequence[str],
) -> list[str]:
    """Return the lines of a manifest, in ASCII. Kubernetes itself checks names and images.

    ``command`` makes this manifest, ``args`` are those of ``python -m lllaunch``; both are
    redacted. ``nproc`` is None if the runtime or the pod decides on it; ``gpus`` and ``cpus`` are
    for a node, 0 if the config does not say. ``rdzv_id`` is empty where the config says it, or
    there is one node. ``variables`` are those that the config takes from the environment.
    """
    import jinja2  # noqa: PLC0415 - only manifests and pages need it

    environment = jinja2.Environment(
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it is no HTML
    )
    environment.filters.update(plain=_yaml_text, quoted=lambda text: _yaml_text(text, '"'))
    told = shlex.join(command)
    text = environment.from_string(_MANIFEST).render(
        version=API_VERSION,
        name=name,
        # a line break in it would end the comment
        made_by=told if told.isprintable() and told.isascii() else "",
        args=[_EXPANDED.sub("$$", word) for word in args],
        nodes=nodes,
        nproc=nproc,
        gpus=gpus,
        cpus=cpus,
        image=image,
        runtime=runtime,
        locked=locked,
        rdzv_id=rdzv_id,
        variables=[each for each in dict.fromkeys(variables) if _VARIABLE.fullmatch(each)],
    )
    return text.splitlines()


def _yaml_text(text: str, style: str | None = None) -> str:
    written: str = yaml.safe_dump(text, default_style=style, width=1_000_000)
    return written.removesuffix("...\n").rstrip()
