"""The hook of `.pre-commit-hooks.yaml`, run by pre-commit in a repository that uses it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.launching import WAIT, Project
from support.repositories import ENV

pre_commit = pytest.importorskip("pre_commit.main").main

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / ".pre-commit-hooks.yaml"
CONFIG = ROOT / "examples" / "ci" / "pre-commit-config.yaml"
HERE = "python -m lllaunch check"


class Repository(Project):
    """A git repository in which pre-commit runs the hook."""

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        own = {
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "PRE_COMMIT_HOME": str(self.root.parent / "pre-commit"),
        }
        return subprocess.run(
            command,
            cwd=self.root,
            env=ENV | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT,
            check=False,
        )

    def commit(self) -> subprocess.CompletedProcess[str]:
        self.run("git", "add", "--all")
        me = ("-c", "user.name=A", "-c", "user.email=a@b")
        return self.run("git", *me, "commit", "--message", "a change")


def hooks_repository(root: Path) -> Repository:
    """What the users' `repo:` names, at the version that the example has."""
    hooks = Repository(root)
    shutil.copy(MANIFEST, hooks.root)
    (repo,) = yaml.safe_load(CONFIG.read_text())["repos"]
    hooks.run("git", "init", "--quiet")
    assert hooks.commit().returncode == 0
    assert hooks.run("git", "tag", repo["rev"]).returncode == 0
    return hooks


@pytest.fixture
def user(tmp_path: Path) -> Repository:
    """A repository with an experiment, and the example's config of pre-commit."""
    hooks = hooks_repository(tmp_path / "hooks")
    user = Repository(tmp_path / "user")
    config = CONFIG.read_text().replace("https://github.com/OWNER/lllaunch", str(hooks.root))
    # the interpreter of the tests is the one on PATH
    config = re.sub(r"\.venv/bin/python", "python", config)
    assert str(hooks.root) in config
    assert f"entry: {HERE}" in config
    user.write(".pre-commit-config.yaml", config)
    user.write("train.py", "print('training')\n")
    user.experiment("one", "{entrypoint: train.py}")
    user.run("git", "init", "--quiet")
    installed = user.run(sys.executable, "-m", "pre_commit", "install")
    assert installed.returncode == 0, installed.stdout
    return user


def test_a_commit_with_a_mistake_is_stopped_and_told_why(user: Repository) -> None:
    user.experiment("one", "{entrypoint: train.py, nprocs: 2}")
    stopped = user.commit()
    assert stopped.returncode == 1, stopped.stdout
    assert "exit code: 2" in stopped.stdout
    assert "conf/exp/one.yaml:2" in stopped.stdout
    assert "nprocs" in stopped.stdout
    user.experiment("one", "{entrypoint: train.py, nproc: 2}")
    passed = user.commit()
    assert passed.returncode == 0, passed.stdout
    assert "Passed" in passed.stdout
    # and one that only deletes what an experiment needs
    (user.root / "train.py").unlink()
    stopped = user.commit()
    assert stopped.returncode == 1, stopped.stdout
    assert "train.py" in stopped.stdout


def test_precommit_takes_the_hook_that_the_example_asks_for() -> None:
    assert pre_commit(["validate-manifest", str(MANIFEST)]) == 0
    (hook,) = yaml.safe_load(MANIFEST.read_text())
    (repo,) = yaml.safe_load(CONFIG.read_text())["repos"]
    assert [each["id"] for each in repo["hooks"]] == [hook["id"]]
    assert hook["pass_filenames"] is False
    for path in ("conf/exp/a.yaml", "conf/b.yml", "src/train.py", "scripts/start.sh"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "README.md")
