"""What a run was built from: git's answer, and the versions of packages."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.launching import WAIT, until
from support.repositories import ENV, git, repository, write

from lllaunch.linux import proc
from lllaunch.run.repository import Build, BuildQuery, build_facts, parse_status, versions_of
from lllaunch.testing import leaked_fds, live_descendants, open_fds

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    return repository(tmp_path / "a tree")


def status(*entries: str) -> str:
    return "".join(f"{entry}\0" for entry in entries)


def test_what_git_says_is_understood():
    told = status(
        f"# branch.oid {HASH}",
        "# branch.head (detached)",
        "# branch.upstream origin/main",
        "1 .M N... 100644 100644 100644 a b a # branch.head no",
        "u UU N... 1 2 3 4 a b c f",
        "? new\nline",
        "? data/",
    )
    found = parse_status(told, "", cwd="/nowhere")
    assert found == Build(commit=HASH, dirty=True, changed=2, untracked=2)


def test_directories_of_outputs_do_not_make_a_tree_dirty(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "net").mkdir()
    told = status(f"# branch.oid {HASH}", "? outputs/", "? net/", "? outputs.txt", "? data/")
    run = str(tmp_path / "outputs/2024-05-01/12-00-00")
    found = parse_status(told, "", cwd=str(tmp_path), own=[run])
    assert found.untracked == 3
    # a project that is not tracked at all is not made of output
    inside = str(tmp_path / "net/outputs/1")
    found = parse_status(
        status("# branch.oid 1", "? net/"), "", cwd=str(tmp_path / "net"), own=[inside]
    )
    assert (found.untracked, found.dirty) == (1, True)


@needs_git
def test_a_repository(tree: Path):
    head = git(tree, "rev-parse", "HEAD")
    found = build_facts(str(tree), environ=ENV)
    assert (found.commit, found.branch) == (head, "main")
    assert (found.dirty, found.changed, found.untracked) == (False, 0, 0)
    assert found.git_problem is None
    assert found.python == sys.version.split()[0]
    assert found.implementation == sys.implementation.name
    assert found.versions["hydra-core"] == metadata.version("hydra-core")

    (tree / "noise.log").write_text("ignored")
    assert build_facts(str(tree), environ=ENV).dirty is False
    write(tree, "outputs/1/plan.yaml")
    found = build_facts(str(tree), environ=ENV, own=[str(tree / "outputs" / "1")])
    assert (found.dirty, found.untracked) == (False, 0)
    (tree / "train.py").write_text("2\n")
    found = build_facts(str(tree), environ=ENV)
    assert (found.dirty, found.changed, found.untracked) == (True, 1, 1)


@needs_git
def test_where_there_is_nothing_to_say(tmp_path: Path):
    environ = ENV | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    found = build_facts(str(tmp_path), environ=environ)
    assert (found.commit, found.git_problem) == (None, "not in a git repository")
    found = build_facts(str(tmp_path / "gone"), environ=environ)
    assert "cannot change to" in found.git_problem
    git(tmp_path, "init", "-q", "-b", "new")
    found = build_facts(str(tmp_path), environ=ENV)
    assert (found.commit, found.branch, found.dirty) == (None, "new", False)
    assert found.git_problem == "there is no commit yet"


def test_without_git_all_else_is_told(tmp_path: Path):
    found = build_facts(str(tmp_path), environ={"PATH": str(tmp_path)})
    assert (found.commit, found.git_problem) == (None, "git is not installed")
    assert "omegaconf" in found.versions


@needs_git
def test_nothing_of_the_repository_is_run(tree: Path, tmp_path: Path):
    proof = tmp_path / "proof"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch '{proof}'\n")
    trap.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(trap))
    shutil.copy(trap, tree / ".git" / "hooks" / "post-index-change")
    (tree / "train.py").touch()
    before = (tree / ".git" / "index").read_bytes()
    assert build_facts(str(tree), environ=ENV).dirty is False
    assert not proof.exists()
    assert (tree / ".git" / "index").read_bytes() == before


def slow_git(directory: Path) -> dict[str, str]:
    """An environment whose git takes for ever to say what the state of a tree is."""
    program = directory / "git"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *status*) sleep 600 & sleep 600;; esac\n'
        f"printf '{HASH}\\nmain\\n'\n"
    )
    program.chmod(0o755)
    return ENV | {"PATH": f"{directory}:{ENV['PATH']}"}


def test_a_git_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lllaunch.run.repository._SHORT_PATIENCE", WAIT)
    fds = open_fds()
    others = {process.pid for process in live_descendants(os.getpid())}
    query = BuildQuery(str(tmp_path), slow_git(tmp_path))
    # the program and what it started
    until(lambda: len(live_descendants(os.getpid(), but=others)) == 3, "git")
    started = live_descendants(os.getpid(), but=others)
    found = query.result(0.0)
    assert found.git_problem == "git status took too long"
    assert (found.commit, found.branch, found.dirty) == (HASH, "main", None)
    assert query.result(0.0) == found
    until(lambda: not any(map(proc.same_process, started)), "their end")
    assert not leaked_fds(fds)


# Versions


def distribution(site: Path, name: str, version: str) -> None:
    (site / f"{name}-{version}.dist-info").mkdir(parents=True)


def test_versions_are_those_of_the_first_place_that_has_a_package(tmp_path: Path):
    site, other = tmp_path / "site", tmp_path / "other"
    distribution(site, "scikit_learn", "1.5")
    distribution(other, "scikit_learn", "1.4")
    distribution(other, "Pillow", "10.1")
    (other / "old-2.0-py3.12.egg-info").mkdir()
    found = versions_of(
        ["scikit-learn", "pillow", "old", "gone"], [str(tmp_path / "no"), str(site), str(other)]
    )
    assert found == {"scikit-learn": "1.5", "pillow": "10.1", "old": "2.0"}
