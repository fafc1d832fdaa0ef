"""``python -m lllaunch plan``: what would run, and where each value came from; its locks."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from lllaunch.app.compose import (
    Composition,
    ConfigRequest,
    Reviewed,
    add_hydra_flags,
    located,
    review_run,
    review_sweep,
)
from lllaunch.app.gate import policy_of
from lllaunch.app.planning import unlocked
from lllaunch.config.fields import Findings
from lllaunch.config.plan import dump_yaml, essential
from lllaunch.config.tree import leaf_items
from lllaunch.documents import Change, Plain, changes_as_json, differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError
from lllaunch.review.annotated import annotated, comment_rows, origin_json, origin_text
from lllaunch.review.lock import (
    lock_path,
    lock_text,
    read_lock,
    renew_command,
    sweep_plan,
    write_lock,
)
from lllaunch.review.paths import PlanRefused, tree_top
from lllaunch.run.repository import Build, BuildQuery, modules_of
from lllaunch.secret_names import redacted_overrides, redactor_for
from lllaunch.text import first_line
from lllaunch.verbs.manifest import add_manifest_flags, show_trainjob
from lllaunch.verbs.printing import (
    Parser,
    complain,
    perform,
    print_json,
    print_lines,
    print_rows,
)
from lllaunch.words import StyledText, commit_text, versions_text


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
        found.append({"lock": path, "changes": changes_as_json(changes)})
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


def main(argv: Sequence[str]) -> int:
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
    parser.add_argument("--changed", action="store_true", help="omit defaults")
    parser.add_argument("--portable", action="store_true", help="omit what differs by machine")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--lock", action="store_true", help="write the plan to conf/locks/NAME.yaml")
    modes.add_argument(
        "--diff", action="store_true", help="print how the plan differs from its lock"
    )
    parser.add_argument(
        "--name",
        help="name of the lock or the TrainJob; default: the choice of group exp, else the primary"
        " config",
    )
    add_manifest_flags(parser)
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
            message = (
                "is not for --format trainjob" if trainjob else "is for --format trainjob alone"
            )
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
            spec = runs[0].spec
            build = None
            if not given.portable:
                build = query.result(modules=modules_of(spec), own=[spec.log_dir])
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
    runs: Sequence[Reviewed],
    build: Build | None,
    *,
    sweep: bool,
    as_json: bool,
    changed: bool,
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
        document["jobs"] = list(_jobs(runs, changes_as_json))
    return document
