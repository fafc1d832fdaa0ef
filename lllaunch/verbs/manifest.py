"""``plan --format trainjob``: a TrainJob of Kubeflow Trainer that runs a plan on Kubernetes.

Fields are those of ``trainer.kubeflow.org/v1alpha1``. Its controller starts one pod for each node,
in which it sets what ``launch.nnodes=auto`` reads (`lllaunch.cluster.detect`): PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT and PET_NPROC_PER_NODE. A TrainJob that names one of
these five itself is refused, another PET_* is not. ``numProcPerNode`` is a number; older versions
took words, too, which the runtime's own default stands for. Kubernetes itself checks names and
images.
"""

from __future__ import annotations

import argparse
import contextlib
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
from lllaunch.cluster.values import MOST_NODES, format_nnodes
from lllaunch.config.fields import Findings
from lllaunch.config.nodes import count_ahead
from lllaunch.config.plan import plan_node
from lllaunch.config.read import watching
from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.review.lock import PlanRefused, lock_path, name_problem, renew_command
from lllaunch.review.paths import locks_all
from lllaunch.secret_names import Redactor, redacted_overrides
from lllaunch.spec import LaunchSpec
from lllaunch.verbs.printing import print_lines

_AUTO = "launch.nnodes=auto"
_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
_RUNTIME = "torch-distributed"
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
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {{ name }}
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: {{ kind }}
    name: {{ runtime | plain }}
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
    findings, flags = Findings(), manifest_flags(given)
    for flag, wrong in (("--lock", given.lock), ("--diff", given.diff)):
        if wrong:
            findings.add_about(flag, "is not for --format trainjob", code="trainjob")
    kind, runtime = findings.attempt(
        "--runtime", flags.get("--runtime", _RUNTIME), parse_runtime
    ) or ("", "")
    asked = findings.attempt("--nodes", given.nodes, _parse_nodes) if given.nodes else None
    experiment, nodes = _look_ahead(command, asked, findings)
    others = (
        text for text in command.overrides if text.lstrip("+~").partition("=")[0] != "launch.nnodes"
    )
    auto = command._replace(overrides=(*others, _AUTO))
    with Composition(auto) as composed:
        with _collecting(findings), watching("oc.env") as variables:
            reviewed = review_run(composed)
            for problem in located([reviewed], _misfits):
                findings.note(problem)
            name = _name(given.name, experiment or reviewed.name, nodes, findings)
        findings.raise_if_any()
        locked = _is_locked(reviewed)
        _admit(composed, reviewed, locked=locked)
    spec = reviewed.spec
    nproc, rdzv = _nproc(spec), plan_node(spec)["launch"]["rdzv"]
    gpus, cpus = ((each or 0) * (nproc or 0) for each in spec.resources)
    own = reviewed.config["hydra"]["job"]["env_set"]
    options = [word for option in flags.items() for word in option]
    options += [] if given.name is None else ["--name", given.name]
    words = ("python", "-m", "lllaunch", "plan", "--format", "trainjob", *options)
    told = shlex.join([*words, *_words(command, spec)])
    names = (each for each in dict.fromkeys(variables) if each not in own)
    text = _rendered(
        name=name,
        # a line break in it would end the comment
        made_by=told if told.isprintable() and told.isascii() else "",
        args=[_EXPANDED.sub("$$", word) for word in _words(auto, spec)],
        nodes=nodes,
        nproc=nproc,
        gpus=gpus,
        cpus=cpus,
        image=given.image,
        kind=kind,
        runtime=runtime,
        locked=locked,
        rdzv_id="" if nodes == 1 or rdzv["id"] is not None else name,
        variables=[each for each in names if _VARIABLE.fullmatch(each)],
    )
    print_lines(text.splitlines())


def _rendered(**values: Any) -> str:
    import jinja2  # noqa: PLC0415 - only manifests and pages need it

    environment = jinja2.Environment(
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it is no HTML
    )
    environment.filters.update(plain=_yaml_text, quoted=lambda text: _yaml_text(text, '"'))
    return environment.from_string(_MANIFEST).render(values)


def _yaml_text(text: str, style: str | None = None) -> str:
    written: str = yaml.safe_dump(text, default_style=style, width=1_000_000)
    return written.removesuffix("...\n").rstrip()


@contextlib.contextmanager
def _collecting(findings: Findings) -> Iterator[None]:
    """What is wrong with a config is told with all the rest."""
    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            if problem not in findings.problems:
                findings.note(problem)


def parse_runtime(text: str) -> tuple[str, str]:
    """Return kind and name of ``NAME`` or ``KIND/NAME``, as kubectl writes it, or raise `Unfit`."""
    before, slash, name = text.rpartition("/")
    kinds = [kind for kind in _KINDS if not slash or kind.lower() == before.lower()]
    if not kinds or not name:
        forms = " or ".join(f"{kind}/NAME" for kind in _KINDS)
        raise Unfit(f"a runtime (NAME, or {forms})", code="trainjob")
    return kinds[0], name


def _parse_nodes(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not 1 <= int(text) <= MOST_NODES:
        raise Unfit("a number of nodes (1, 2, ...)", code="trainjob")
    return int(text)


def _look_ahead(command: ConfigRequest, nodes: int | None, findings: Findings) -> tuple[str, int]:
    """Return the experiment, and the nodes before they are left to the pods, 1 if not known."""
    with Composition(command) as composed:
        if composed.is_sweep():
            message = "is for sweeps, and a TrainJob is one run"
            findings.add_about("-m", message, code="trainjob")
            findings.raise_if_any()
        config = composed.compose()
        with _collecting(findings), locating(composed.loader, config):
            expect_quoted(config)
            own = Findings()
            count = count_ahead(config, own)
            if count is not None and nodes is None:
                text = count if isinstance(count, str) else format_nnodes(*count)
                nodes = own.attempt("launch.nnodes", text, lambda _: _fixed_count(count))
            own.raise_if_any()
        return experiment_name(config), nodes or 1


def _fixed_count(counts: str | tuple[int, int]) -> int:
    """Return the one number of nodes that a config says, or raise `Unfit`."""
    if isinstance(counts, str):
        expected = "a number of nodes, as the TrainJob is what says it to the others"
        raise Unfit(expected, "give --nodes N", code="trainjob")
    least, most = counts
    if least != most:
        hint = f"give --nodes N, such as {most}"
        raise Unfit("one number of nodes, as a TrainJob has no range", hint, code="trainjob")
    return most


def name_for(experiment: str, nodes: int) -> str:
    """Return a name for the TrainJob of an experiment; empty if nothing of it could be one."""
    name = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"run-{name}"
    return name[: _LONGEST_LABEL - len(f"-node-0-{nodes - 1}-abcde")].rstrip("-")


def _name(asked: str | None, default: str, nodes: int, findings: Findings) -> str:
    """Return the name of the TrainJob; notes what is wrong with it."""
    found = name_for(default if asked is None else asked, nodes)
    if asked is not None and found != asked:
        hint = f"did you mean {found!r}?" if found else ""
        expected = "a name for a TrainJob (small letters, digits and -, the first a letter)"
        findings.note(Diagnostic("trainjob", "--name", asked, "", hint, expected=expected))
    elif not found:
        message = "has no name that it could be made from"
        findings.note(Diagnostic("trainjob", "", "the TrainJob", message, "give --name NAME"))
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
    return bool(name) and not name_problem(name) and os.path.lexists(lock_path(os.getcwd(), name))


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
