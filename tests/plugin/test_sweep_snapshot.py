"""Jobs of a sweep on this machine that run the code as it was when the sweep began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.launching import until
from support.repositories import commit, git
from support.sweeping import Finished, SweepProject

# Each job waits until it may go on, and tells which code it is.
WORK = """
import os, time
from pathlib import Path
import part

def go(wait):
    top = Path(os.environ["TOP"])
    (top / f"began-{os.environ['JOB']}").touch()
    while wait and not (top / "go-on").exists():
        time.sleep(0.02)
    return f"{part.VERSION} {Path(__file__).parent.name} {Path.cwd().name}"
"""
LAUNCH = "{entrypoint: 'work:go', args: {wait: '${wait}'}, env: {JOB: '${hydra:job.num}'}}"


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    project = SweepProject(tmp_path)
    project.write("work.py", WORK)
    project.write("part.py", "VERSION = 'first'\n")
    project.write(".gitignore", "sweep\n*.txt\nbegan-*\ngo-on\n")
    project.experiment("test", LAUNCH, "wait: true\nx: 0\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    # not committed, and in the snapshot all the same
    project.write("part.py", "VERSION = 'second'\n")
    return project


def swept(project: SweepProject, snapshot: str, *jobs: str, **options: Any) -> Finished:
    """Run two jobs, one after the other; the code changes while the first one runs."""
    sweep = project.start(
        *(jobs or ("+exp=test", "x=1,2")),
        *("hydra.launcher.max_parallel=1", f"hydra.launcher.snapshot={snapshot}"),
        env={"TOP": str(project.root), "JOB": "0"},
        **options,
    )
    until(lambda: (project.root / "began-0").exists() or sweep.process.poll() is not None, "a job")
    project.write("part.py", "VERSION = 'third'\n")
    (project.root / "go-on").touch()
    return sweep.finish()


def returned(project: SweepProject) -> list[Any]:
    jobs = project.document()["jobs"]
    return [job["return_value"] for job in sorted(jobs, key=lambda job: job["job"])]


def test_all_jobs_run_the_code_as_it_was(project: SweepProject) -> None:
    ended = swept(project, "git")
    assert ended.code == 0, ended.err
    assert returned(project) == ["second code code"] * 2
    found = project.result(1)["build"]
    assert found["commit"] == git(project.root, "rev-parse", "HEAD")
    assert found["dirty"]
    assert found["snapshot"]["path"] == str(project.sweep / "code")
    assert "+VERSION = 'second'" in Path(found["snapshot"]["diff"]).read_text()
    # what the job was is said without the snapshot, so that it can be run again
    plan = (project.sweep / "1" / "plan.yaml").read_text()
    assert "code" not in plan


def test_a_temporary_one_is_gone_with_the_sweep(project: SweepProject) -> None:
    ended = swept(project, "temporary")
    assert ended.code == 0, ended.err
    assert returned(project) == ["second code code"] * 2
    assert not (project.sweep / "code").exists()
    assert len(git(project.root, "worktree", "list").splitlines()) == 1
    assert git(project.root, "for-each-ref", "refs/lllaunch") == ""
    # what was run can still be told
    assert "+VERSION = 'second'" in (project.sweep / "code.diff").read_text()


def test_a_resumed_sweep_has_one_of_its_own(project: SweepProject) -> None:
    project.write("part.py", "VERSION = 'second'\nassert False\n")
    ended = swept(project, "git")
    assert ended.code == 6
    ended = project.run("hydra.launcher.resume=sweep", env={"TOP": str(project.root)})
    assert ended.code == 0, ended.err
    assert returned(project) == ["third code_1 code_1"] * 2


def test_a_script_of_the_users_own_is_that_of_then(project: SweepProject) -> None:
    project.write(
        "app.py",
        "import os, hydra, work\n\n"
        "@hydra.main(version_base=None, config_path=None)\n"
        "def main(cfg):\n"
        "    return f'{work.go(True)} {os.path.basename(os.path.dirname(__file__))}'\n\n"
        "main()\n",
    )
    ours = ("hydra/launcher=lllaunch", "+x=1,2")
    ended = swept(project, "git", *ours, python=("app.py", "-m"))
    assert ended.code == 0, ended.err
    # the script's own directory is what it is run from
    assert [text.split()[0] for text in returned(project)] == ["second"] * 2
    assert [text.split()[-1] for text in returned(project)] == ["code"] * 2
