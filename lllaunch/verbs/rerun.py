"""Runs from what is written down: ``rerun RUN`` again, ``job DIR`` what a batch job is to run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from lllaunch.app.command_line import prestarted, program
from lllaunch.errors import ConfigError, Diagnostic, LaunchError
from lllaunch.results.locate import LATEST, locate
from lllaunch.review.paths import POLICY_VARIABLE, PlanRefused, locks_all, policy_path, tree_top
from lllaunch.run.repository import build_facts
from lllaunch.run.result import known_result
from lllaunch.spawner.forks import BATCH_JOB, NOTICE
from lllaunch.verbs.printing import Parser, complain, perform
from lllaunch.words import commit_text, ending, resume_override, shown_path

_DESCRIPTION = """\
Run the plan.yaml of a run again, in a new directory, whatever the config says today. Variables
are read from the environment again."""
_EPILOG = """\
Overrides may only be Hydra's own, such as hydra.run.dir=DIR. Relative paths start in the same
directory as in the first run, if it still exists.

exit codes: those of a run; 5 if the plan is now another one."""


def rerun(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("rerun", _DESCRIPTION, _EPILOG)
    parser.add_run("a run")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="an override of hydra.*")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing while all goes well"
    )
    return perform(parser, argv, _rerun)


def _rerun(given: argparse.Namespace) -> int:
    from lllaunch.app.app import read_again, run_again  # noqa: PLC0415 - most batch jobs need no Hydra

    if "=" in given.run and not os.path.exists(given.run):
        given.run, given.overrides = LATEST, [given.run, *given.overrides]
    found = locate(given.run)
    problems = [
        Diagnostic(
            "rerun",
            text,
            "",
            "would make another plan",
            "give Hydra's own overrides only, or run the experiment itself with it",
        )
        for text in given.overrides
        if not text.lstrip("+~").startswith(("hydra.", "hydra/"))
    ]
    if found.kind == "sweep":
        resume = resume_override(found.path)
        hint = f"\n  to run the rest of the sweep: {program()} -m {resume}"
        message = "is a sweep; name one of its jobs"
        problems.insert(0, Diagnostic("rerun", "RUN", repr(found.path), message, hint))
    if problems:
        raise ConfigError(tuple(problems))
    directory = os.path.abspath(found.path)
    again = read_again(directory)
    result = known_result(directory)
    if not given.quiet:
        state: str = "no result" if result is None else result.state
        state += f", {ending(result.exit_code, '')}" if result and result.exit_code else ""
        complain(f"repeats {shown_path(directory, os.getcwd())} ({state})")
    build = None if result is None else result.build
    if build is not None and build.commit:
        now = build_facts(os.getcwd(), own=[directory])
        if now.commit != build.commit or now.dirty or build.dirty:
            complain(f"the plan is the same, the code may be another: now {commit_text(now)}")
            complain(f"then {commit_text(build)}")
    if os.path.isdir(again.cwd):
        _expect_same_rules(directory, again.cwd)
        os.chdir(again.cwd)
    # what Hydra reads
    sys.argv[1:] = given.overrides
    with prestarted(given.overrides) as spawner:
        return run_again(again, spawner, quiet=given.quiet)


def _expect_same_rules(run: str, cwd: str) -> None:
    """Expects that what may run where a run was started is decided by the same files as here.

    The run's own files say where that was.
    """
    here, there = tree_top(os.getcwd()), tree_top(os.path.realpath(cwd))
    policy = policy_path(here, os.environ)
    ruled = locks_all(os.environ) or (policy is not None and not os.environ.get(POLICY_VARIABLE))
    if ruled and os.path.realpath(here) != there:
        message = f"was started in {cwd!r}, where the rules of this tree do not hold"
        raise PlanRefused(
            problems=(Diagnostic("rerun", "RUN", repr(run), message, "run it again there"),)
        )


def job(argv: Sequence[str]) -> int:
    """Run what was submitted from a directory, on each node of a batch job; not for people."""
    from lllaunch.app.batch import job_id, run_in_job, run_task  # noqa: PLC0415 - of batch jobs only

    # until somebody acts on it: it ends who does not
    signal.signal(NOTICE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parser = Parser("job", "Run, in a batch job, what was submitted from a directory.")
    parser.add_argument("directory", metavar="DIR", help="absolute path of the run's directory")
    parser.add_argument(
        "--array", action="store_true", help="the directory is that of an array of runs"
    )
    given = parser.parse_args(argv)
    try:
        number = os.environ[BATCH_JOB] = job_id()
        return (run_task if given.array else run_in_job)(given.directory, number)
    except LaunchError as error:
        complain(str(error))
        return error.exit_code
