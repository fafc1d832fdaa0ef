"""``plan``: what would run, where each value came from, and locks; ``init``: a config of a script.

``plan --format trainjob`` prints a TrainJob of Kubeflow Trainer that runs a plan on Kubernetes.
Fields are those of ``trainer.kubeflow.org/v1alpha1``. Its controller starts one pod for each node,
in which it sets what ``launch.nnodes=auto`` reads (`lllaunch.cluster.detect`): PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT and PET_NPROC_PER_NODE. A TrainJob that names one of
these five itself is refused, another PET_* is not. ``numProcPerNode`` is a number; older versions
took words, too, which the runtime's own default stands for. Kubernetes itself checks names, images
and numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from msgspec import structs
from msgspec.structs import replace
from omegaconf import OmegaConf

from lllaunch.app.command_line import program
from lllaunch.app.compose import (
    Composition,
    ConfigRequest,
    Reviewed,
    add_hydra_flags,
    located,
    review_run,
    review_sweep,
)
from lllaunch.app.gate import admit, policy_of
from lllaunch.app.planning import DIRECTORY, locating, unlocked
from lllaunch.config.fields import Findings
from lllaunch.config.origins import annotated, comment_rows, origin_json, origin_text
from lllaunch.config.plan import dump_yaml, essential, plan_node
from lllaunch.config.read import watching
from lllaunch.config.tree import leaf_items
from lllaunch.documents import Change, Plain, differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError
from lllaunch.files import naming, write_atomic
from lllaunch.review.lock import (
    lock_path,
    lock_text,
    name_problem,
    read_lock,
    renew_command,
    sweep_plan,
    write_lock,
)
from lllaunch.review.paths import PlanRefused, locks_all, tree_top
from lllaunch.run.repository import Build, BuildQuery
from lllaunch.secret_names import redacted_overrides, redactor_for
from lllaunch.text import first_line
from lllaunch.verbs.printing import (
    Parser,
    complain,
    perform,
    print_json,
    print_lines,
    print_rows,
)
from lllaunch.words import StyledText, commit_text, versions_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.spec import LaunchSpec


def _write_locks(runs: Sequence[Reviewed], command: ConfigRequest, name: str | None) -> None:
    """Write the locks of some plans and print what is new in them."""
    problems = located(runs, lambda run: run.unlocked)
    if problems:
        raise ConfigError(problems)
    for own, words, plan in _locks(runs, command, name):
        text = lock_text(own, words, plan)
        path, known = os.path.relpath(lock_path(os.getcwd(), own)), None
        # one that cannot be read is about to be replaced
        with contextlib.suppress(ConfigError, PlanRefused):
            known = read_lock(path) if os.path.lexists(path) else None
        write_lock(os.getcwd(), own, text)
        changes = () if known is None else differences(known.plan, plan)
        what = "the plan is new" if known is None else "the plan is the same"
        told = [f"wrote {path}: {f'{len(changes)} changed' if changes else what}"]
        print_lines([*told, *(f"  {line}" for line in text_lines(changes))])


def _show_difference(
    runs: Sequence[Reviewed], command: ConfigRequest, name: str | None, *, as_json: bool
) -> int:
    """Print how plans differ from their locks, and return the exit code."""
    found = []
    for own, words, plan in _locks(runs, command, name):
        path = os.path.relpath(lock_path(os.getcwd(), own))
        if not os.path.lexists(path):
            message = "does not exist: this plan has not been reviewed"
            missing = Diagnostic("no-lock", path, "", message)
            raise PlanRefused(problems=(missing,), renew=renew_command(words))
        changes = differences(read_lock(path).plan, plan)
        found.append({"lock": path, "changes": Plain()(changes)})
        if not as_json:
            print_lines(text_lines(changes) or [f"{path}: the plan is the reviewed one"])
    differs = any(each["changes"] for each in found)
    if as_json:
        print_json({"differs": differs, "locks": found})
    return ExitCode.REFUSED if differs else ExitCode.SUCCESS


def _locks(
    runs: Sequence[Reviewed], command: ConfigRequest, name: str | None
) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, Any]]]:
    """One lock for each name: of a run, or of all jobs of a sweep that have it.

    Yields its name, the words of the command that makes it, and the plan that it holds.
    """
    given = () if name is None else ("--name", name)
    by_name: dict[str, list[Reviewed]] = {}
    for run in runs:
        by_name.setdefault(run.name if name is None else name, []).append(run)
    if "" in by_name:
        hint = "give one with --name NAME, and to runs with launch.locked=NAME"
        raise ConfigError((Diagnostic("lock-name", "", "the lock", "has no name", hint),))
    for own, members in by_name.items():
        plan, made_by = members[0].plan, command
        if command.multirun and len(members) == 1:
            overrides = tuple(shlex.split(members[0].job))
            made_by = command._replace(multirun=False, overrides=overrides)
        elif command.multirun:
            plan = sweep_plan({run.job: run.spec for run in members})
        clean = unlocked(redacted_overrides(made_by.overrides))
        yield own, (*given, *made_by._replace(overrides=clean).words), plan


_DESCRIPTION = """\
Show what would run: the decided plan as YAML that composes to the same plan again, with the
origin of each value. Nothing is started, imported or written."""
_EPILOG = """\
The comment behind a value names its origin: file and line, group choice or override, then what it
overrides, and after '<-' the origin of what it refers to. The plan is the same on every machine.
Commit and versions are in comments at the end. For a run on a cluster, the batch file is there,
and the cluster is asked whether it accepts it; its objections are warnings.

--format trainjob prints a TrainJob of Kubeflow Trainer: its pods run the same command with
launch.nnodes=auto. If the plan has a lock, they run only the reviewed plan.

exit codes: 0; 1 if Hydra cannot compose the config; 2 if the config is wrong; 5 if the plan
differs from its lock (--diff), or the project's conf/lllaunch.yaml does not allow it."""
_HERE = "On this machine, and no part of the plan:"
_BATCH = "The batch file, and no part of the plan:"
_BATCH_OF_SWEEP = "The batch file of its first job; a sweep submits such jobs as arrays:"
_OUTPUT_DIR = "<output_dir>"


def plan(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("plan", _DESCRIPTION, _EPILOG)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--json", dest="format", action="store_const", const="json", help="same as --format json"
    )
    forms.add_argument(
        "--format",
        choices=("text", "json", "trainjob"),
        default="text",
        help="default: text; trainjob: a manifest for Kubernetes that runs the plan",
    )
    parser.add_flags(changed="omit defaults", portable="omit what differs by machine")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--lock", action="store_true", help="write the plan to conf/locks/NAME.yaml")
    differs = "print how the plan differs from its lock"
    modes.add_argument("--diff", action="store_true", help=differs)
    parser.add_argument(
        "--name",
        help="name of the lock or the TrainJob; default: the choice of group exp, else the primary"
        " config",
    )
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
    add_hydra_flags(parser)
    parser.add_argument_group(
        "a script, as in a run",
        "torchrun's options, overrides, the script and its arguments; prints the YAML that runs it",
    )
    return perform(parser, argv, _plan, takes_script=True)


def _plan(given: argparse.Namespace) -> int:
    command = ConfigRequest.of(given)
    trainjob = given.format == "trainjob"
    findings = Findings()
    for name in ("lock", "diff") if trainjob else ("image", "runtime", "nodes"):
        if getattr(given, name):
            message = f"is {'not for' if trainjob else 'for'} --format trainjob"
            message += "" if trainjob else " alone"
            findings.add_about(f"--{name}", message, code="trainjob")
    findings.raise_if_any()
    if trainjob:
        show_trainjob(command, given)
        return ExitCode.SUCCESS
    as_json, code = given.format == "json", 0
    with contextlib.closing(BuildQuery(os.getcwd())) as query:
        composed = Composition(command)
        policy = policy_of(tree_top(os.getcwd()))
        if composed.is_sweep():
            runs = review_sweep(composed, policy)
            command = command._replace(multirun=True)
        else:
            runs = [review_run(composed, policy)]
        # what may not run is not for review, but may be looked at
        refused = PlanRefused(problems=located(runs, lambda run: run.refused))
        if given.lock and not refused.problems:
            _write_locks(runs, command, given.name)
        elif given.diff:
            code = _show_difference(runs, command, given.name, as_json=as_json)
        elif given.has_script and not (command.multirun or as_json):
            print_lines(experiment_text(runs[0]).splitlines())
        elif not given.lock:
            build = None if given.portable else query.of_run(runs[0].spec)
            sweep, changed = command.multirun, given.changed
            _show(runs, build, sweep=sweep, as_json=as_json, changed=changed)
        if refused.problems:
            raise refused
    return code


def experiment_text(run: Reviewed) -> str:
    """Return a config of the group exp that comes to the plan of a run."""
    nodes = run.spec.nodes
    ranked = nodes is not None and nodes.node_rank is not None
    comment = "# give each node its own launch.node_rank=N on the command line\n" if ranked else ""
    text = dump_yaml(essential(run.readable))
    return f"# @package _global_\n{comment}{text}"


def _show(
    runs: Sequence[Reviewed], build: Build | None, *, sweep: bool, as_json: bool, changed: bool
) -> None:
    first = runs[0]
    batch = _batch_file(first, portable=build is None)
    if as_json:
        print_json({**_document(runs, build, sweep=sweep), **batch})
        return
    plan = essential(first.readable) if changed else first.readable
    rows = annotated(plan, lambda path: origin_text(first.chain(path)))
    rest: dict[str, Any] = {"resolved": first.resolved, "plan_hash": first.plan_hash}
    if sweep:
        rest["jobs"] = list(_jobs(runs, lambda changes: text_lines(changes) if changes else None))
    rows += [(StyledText(text),) for text in dump_yaml(rest).splitlines()]
    if build is not None:
        rows += comment_rows(_HERE, _here(build).items())
    if batch:
        text = batch["batch"] or f"none: {batch['batch_problem']}"
        title = _BATCH_OF_SWEEP if sweep else _BATCH
        lines = (f"# {line}".rstrip() for line in (title, *text.splitlines()))
        rows += [(StyledText(line, "faint"),) for line in lines]
    print_rows(rows)


def _batch_file(run: Reviewed, *, portable: bool) -> dict[str, Any]:
    """Return ``batch`` and ``batch_problem``, one of which is None; nothing without a cluster.

    ``portable``: the same on every machine.
    """
    spec = run.spec
    if spec.cluster is None or portable:
        return {}
    # only of what goes to a cluster
    from lllaunch.app.submitting import batch_text  # noqa: PLC0415
    from lllaunch.cluster import slurm  # noqa: PLC0415

    # of a run that is named after the moment nobody knows the directory yet
    unknown = "${" in run.directory or "<" in run.directory
    shown = _OUTPUT_DIR if unknown else spec.output_dir
    name = run.name or os.path.basename(spec.entrypoint.text)
    try:
        text = batch_text(replace(spec, output_dir=shown, log_dir=shown), name)
    except LaunchError as error:
        return {"batch": None, "batch_problem": first_line(str(error))}
    text = redactor_for(spec)(text)
    # where the cluster cannot be asked nothing is said
    with contextlib.suppress(LaunchError):
        here = replace(spec, output_dir=os.getcwd(), log_dir=os.getcwd())
        problem = slurm.test_only(batch_text(here, name)) if slurm.available() else None
        if problem is not None:
            complain(f"warning: the cluster would not take the run: {problem}")
    return {"batch": text, "batch_problem": None}


def _jobs(
    runs: Sequence[Reviewed], tell: Callable[[Sequence[Change]], object]
) -> Iterator[dict[str, Any]]:
    """Yield what the jobs of a sweep are, and how they differ from the first one, where told."""
    for run in runs:
        told = tell(differences(runs[0].plan, run.plan))
        differs = {} if told is None else {"differs": told}
        yield {"overrides": run.job, "plan_hash": run.plan_hash, **differs}


def _here(build: Build) -> dict[str, str]:
    """Return what this machine has of the project, in words."""
    return {"commit": commit_text(build), "versions": versions_text(build)}


def _document(runs: Sequence[Reviewed], build: Build | None, *, sweep: bool) -> dict[str, Any]:
    first = runs[0]
    fingerprint: dict[str, Any] = {"plan_hash": first.plan_hash}
    document = {
        **Plain()(first.readable),
        "resolved": first.resolved,
        "origins": {
            ".".join(map(str, path)): origin_json(first.chain(path))
            for path, _ in leaf_items(first.readable)
        },
        "fingerprint": fingerprint,
    }
    if build is not None:
        fingerprint["build"] = Plain()(build)
        document["here"] = _here(build)
    if sweep:
        document["jobs"] = list(_jobs(runs, Plain()))
    return document


_INIT = """\
Write conf/exp/NAME.yaml, which runs what a command line runs: a script with torchrun's options,
with or without the word torchrun, and overrides. NAME is that of the script, or of --name.

  {0} init train.py --lr 0.1
  {0} init torchrun --nproc-per-node=2 train.py --lr 0.1"""


def init(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("init", _INIT.format(program()))
    parser.add_argument("--name", help="name of the file, without .yaml; default: the script's")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    add_hydra_flags(parser)
    return perform(parser, argv, _init, takes_script=True)


def _init(given: argparse.Namespace) -> None:
    if not given.has_script:
        hint = f"\n  {program()} init SCRIPT"
        raise ConfigError((Diagnostic("missing", "", "init", "expected a script", hint),))
    composed = Composition(ConfigRequest.of(given))
    run = review_run(composed)
    name = given.name or re.split(r"[./: ]", run.spec.entrypoint.text.removesuffix(".py"))[-1]
    if not re.fullmatch(r"\w[\w-]*", name, re.ASCII):
        message = "is not a name of letters, digits, _ and -"
        raise ConfigError((Diagnostic("text", "--name", repr(name), message),))
    path = os.path.join(DIRECTORY, "exp", f"{name}.yaml")
    if os.path.lexists(path) and not given.force:
        hint = "replace it with --force, or choose another name with --name"
        raise ConfigError((Diagnostic("file", path, "", "already exists", hint),))
    with naming(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, experiment_text(run).encode())
    next_words = {
        f"plan +exp={name}": "print what would run",
        f"+exp={name}": "run it",
        f"plan --lock +exp={name}": "write down that this plan is reviewed",
    }
    lines = [
        f"  {program()} {words:<{len(name) + 17}}   # {what}" for words, what in next_words.items()
    ]
    print_lines([f"wrote {path}; next:", *lines])


_AUTO = "launch.nnodes=auto"
_KIND = "ClusterTrainingRuntime"
_RUNTIME = "torch-distributed"
# Kubernetes makes the names of pods, labels of DNS of at most 63 characters, from that of the job.
_LONGEST = 40
# What Kubernetes would take for a variable of its own, or for an escape of one.
_EXPANDED = re.compile(r"\$(?=[$(])")


def show_trainjob(command: ConfigRequest, given: argparse.Namespace) -> None:
    """Prints a TrainJob that runs a plan; what is locked, or has a lock, as reviewed only."""
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
        refused.renew = renew_command([*named, *words])
        raise
    return locked
