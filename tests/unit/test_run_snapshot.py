"""The code of a run as it was when the run was submitted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.repositories import ENV, commit, git, repository, write

from lllaunch.errors import SnapshotFailed
from lllaunch.run.repository import (
    Build,
    Snapshot,
    SnapshotPlace,
    build_facts,
    free_place,
    hold,
    let_go,
    remove,
    take,
)

pytestmark = [
    pytest.mark.slow,  # some dozen gits each
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    return repository(tmp_path / "a tree")


def taken(
    cwd: Path, path: Path, env: dict[str, str] = ENV, say: Callable[[str], object] = str
) -> Snapshot:
    found = take(str(cwd), str(path), env, say)
    assert found is not None
    return found


def visible(tree: Path) -> tuple[Any, ...]:
    """All of a repository that its user sees, and the index to the byte."""
    return (
        (tree / ".git" / "index").read_bytes() if (tree / ".git" / "index").exists() else b"",
        (tree / ".git" / "HEAD").read_text(),
        git(tree, "--no-optional-locks", "status", "--porcelain=v2", "--branch"),
        git(tree, "for-each-ref", "refs/heads", "refs/tags", "refs/stash"),
        sorted(os.listdir(tree)),
    )


def files_of(path: Path | str) -> set[str]:
    found: set[str] = set()
    for directory, inner, names in os.walk(path):
        links = [name for name in inner if os.path.islink(os.path.join(directory, name))]
        found.update(os.path.relpath(os.path.join(directory, each), path) for each in names + links)
    return found - {".git"}


def test_all_that_is_not_committed_is_in_it_and_nothing_else_changes(tree: Path, tmp_path: Path):
    write(tree, "staged", "gone", "gone too", "tool", "both", text="old\n")
    commit(tree)
    (tree / "staged").write_text("new\n")
    (tree / "both").write_text("staged\n")
    git(tree, "add", ".")
    git(tree, "rm", "-q", "gone")
    (tree / "both").write_text("not staged\n")
    (tree / "gone too").unlink()
    (tree / "tool").chmod(0o755)
    (tree / "train.py").write_text("2\n")
    strange = os.fsdecode(b"new\n\xff \xc3\xa4")
    write(tree, f"pkg/{strange}")
    (tree / "pkg" / "blob").write_bytes(bytes(range(256)))
    (tree / "link").symlink_to("train.py")
    git(tree, "add", "--intent-to-add", "link")
    before = visible(tree)

    code = tmp_path / "run" / "code"
    found = taken(tree / "pkg", code)
    assert visible(tree) == before
    assert (found.path, found.top, found.changed) == (str(code), str(tree), True)
    assert found.commit == git(tree, "rev-parse", "HEAD")
    assert found.problem == ""
    facts = build_facts(found.path, environ=ENV)
    build = found.build(facts)
    assert (build.commit, build.dirty) == (found.commit, True)
    assert build.versions == facts.versions
    assert build.snapshot == SnapshotPlace(found.path, found.diff, found.tree_commit)
    assert (code / "staged").read_text() == "new\n"
    assert (code / "both").read_text() == "not staged\n"
    assert (code / "train.py").read_text() == "2\n"
    assert (code / "pkg" / strange).read_text() == "x"
    assert os.readlink(code / "link") == "train.py"
    assert (code / "tool").stat().st_mode & stat.S_IXUSR
    assert files_of(code) == files_of(tree) - {
        name for name in files_of(tree) if name.startswith(".git/")
    }
    assert git(code, "rev-parse", "HEAD") == found.tree_commit
    assert git(code, "rev-parse", "HEAD^") == found.commit
    assert git(code, "status", "--porcelain") == ""
    # what the author does from now on is not seen there
    (tree / "train.py").write_text("3\n")
    assert (code / "train.py").read_text() == "2\n"

    # the diff is enough to come to the same from the commit
    again = tmp_path / "again"
    git(tree, "worktree", "add", "-q", "--detach", str(again), found.commit)
    git(again, "apply", "--index", found.diff)
    assert git(again, "write-tree") == git(code, "rev-parse", "HEAD^{tree}")


def test_only_its_owner_may_read_it(tree: Path, tmp_path: Path) -> None:
    secret = tree / "settings"
    secret.write_text("TOKEN=1\n")
    secret.chmod(0o600)
    # of an earlier one
    (tmp_path / "code.diff").touch(0o644)
    snapshot = taken(tree, tmp_path / "code")
    for path in (snapshot.path, snapshot.diff):
        assert not stat.S_IMODE(os.stat(path).st_mode) & 0o077
    assert "TOKEN=1" in Path(snapshot.diff).read_text()


def test_the_same_content_is_the_same_commit(tree: Path, tmp_path: Path):
    (tree / "new.py").write_text("1")
    first = taken(tree, tmp_path / "1")
    second = taken(tree, tmp_path / "2", {**ENV, "GIT_AUTHOR_NAME": "B", "TZ": "Asia/Tokyo"})
    assert first.tree_commit == second.tree_commit != first.commit
    remove(first, ENV)
    git(tree, "gc", "-q", "--prune=now")
    assert (tmp_path / "2" / "new.py").read_text() == "1"
    shutil.rmtree(tmp_path / "2")
    git(tree, "worktree", "prune")
    git(tree, "reflog", "expire", "--expire=now", "--all")
    git(tree, "gc", "-q", "--prune=now")
    # the worktree was deleted by hand, and still its code can be had
    assert git(tree, "show", f"{second.tree_commit}:new.py") == "1"
    remove(second, ENV)
    assert git(tree, "for-each-ref", "refs/lllaunch") == ""


def test_a_clean_tree(tree: Path, tmp_path: Path):
    found = taken(tree, tmp_path / "code")
    assert (found.changed, found.tree_commit) == (False, found.commit)
    assert Path(found.diff).read_text() == ""
    # one that nobody holds stays
    let_go(found, "run")
    assert os.path.isdir(found.path)
    assert free_place(str(tmp_path)) == str(tmp_path / "code_1")


def test_no_repository_and_none_with_files(tmp_path: Path, tree: Path):
    (tmp_path / "plain").mkdir()
    assert take(str(tmp_path / "plain"), str(tmp_path / "code"), ENV, str) is None
    assert take(str(tree / ".git"), str(tmp_path / "code"), ENV, str) is None
    assert not (tmp_path / "code").exists()


def test_before_the_first_commit(tmp_path: Path):
    path = tmp_path / "new"
    path.mkdir()
    git(path, "init", "-q")
    empty = taken(path, tmp_path / "empty")
    assert (empty.commit, files_of(empty.path)) == ("", set())
    (path / "train.py").write_text("1\n")
    found = taken(path, tmp_path / "code")
    assert (found.commit, found.changed) == ("", True)
    assert (tmp_path / "code" / "train.py").read_text() == "1\n"
    assert "+1" in Path(found.diff).read_text()
    assert found.build(Build()).commit is None
    remove(empty, ENV)
    remove(found, ENV)


def test_conflicts_are_refused(tree: Path, tmp_path: Path):
    git(tree, "checkout", "-q", "-b", "side")
    write(tree, "train.py", text="side\n")
    commit(tree)
    git(tree, "checkout", "-q", "main")
    write(tree, "train.py", text="main\n")
    commit(tree)
    with pytest.raises(subprocess.CalledProcessError):
        git(tree, "merge", "side")
    before = visible(tree)
    told = r"conflicts.* in train.py; cluster.snapshot=none"
    with pytest.raises(SnapshotFailed, match=told) as e:
        taken(tree, tmp_path / "code")
    assert e.value.path == str(tree)
    assert visible(tree) == before
    assert not (tmp_path / "code").exists()
    # in the middle of a merge, but resolved
    git(tree, "checkout", "-q", "--ours", "train.py")
    git(tree, "add", ".")
    assert (Path(taken(tree, tmp_path / "code").path) / "train.py").read_text() == "main\n"


def test_what_is_ignored_is_shared_and_survives(tree: Path, tmp_path: Path):
    (tree / ".gitignore").write_text(
        "*.so\n*.pyc\n__pycache__/\n/data/\ncache/*\n!cache/.keep\noutputs\n"
    )
    write(tree, "data/set/1", "pkg/fast.so", "pkg/__init__.py", "pkg/__pycache__/a.pyc")
    write(tree, "built/only.so", "cache/.keep", "cache/1", "outputs/1/log", "pkg/a.pyc")
    code = tree / "outputs" / "2" / "code"
    found = taken(tree, code)
    assert files_of(code) == {
        *(".gitignore", "train.py", "data", "pkg/fast.so", "pkg/__init__.py", "built/only.so"),
        *("cache/.keep", "cache/1"),
    }
    assert os.readlink(code / "data") == str(tree / "data")
    assert os.readlink(code / "pkg" / "fast.so") == str(tree / "pkg" / "fast.so")
    remove(found, ENV)
    remove(found, ENV)
    assert not code.exists()
    assert (tree / "data" / "set" / "1").read_text() == "x"
    assert (tree / "cache" / "1").exists()
    assert os.path.exists(found.diff)  # result.json names it


def test_untracked_keys_are_shared_and_in_no_commit(tree: Path, tmp_path: Path):
    write(tree, "tracked.key", text="old\n")
    commit(tree)
    (tree / "tracked.key").write_text("changed\n")
    keys = (".env", "new/.env.local", "new/deep/Server.PEM", "id_rsa", "new/secrets.yaml")
    write(tree, *keys, text="planted\n")
    write(tree, "new/code.py")
    found = taken(tree, tmp_path / "code")
    committed = git(tree, "ls-tree", "-r", "--name-only", found.tree_commit).splitlines()
    assert "new/code.py" in committed
    assert not set(keys) & set(committed)
    for key in keys:
        assert os.readlink(tmp_path / "code" / key) == str(tree / key)
    # what the user has committed is the user's to decide
    assert (tmp_path / "code" / "tracked.key").read_text() == "changed\n"
    assert ".env" not in Path(found.diff).read_text()
    objects = git(tree, "cat-file", "--batch-all-objects", "--batch-check")
    assert git(tree, "hash-object", "--", ".env").strip() not in objects


def test_directories_of_runs_and_sweeps_are_no_code(tree: Path, tmp_path: Path) -> None:
    write(
        tree, "runs/a/plan.yaml", "runs/a/submission.jsonl", "runs/a/attempt_0/0/big", "runs/b.py"
    )
    write(
        tree, "grid/sweep.jsonl", "grid/0/big", "work/plan.yaml", "work/events.jsonl", "work/x.py"
    )
    # a plan that somebody keeps beside code, and one that lies where the user works
    write(tree, "kept/plan.yaml", "kept/y.py")
    found = taken(tree / "work", tmp_path / "code")
    assert files_of(found.path) == {
        *(".gitignore", "train.py", "runs/b.py", "kept/plan.yaml", "kept/y.py"),
        *("work/plan.yaml", "work/events.jsonl", "work/x.py"),
    }


def test_much_that_nobody_tracks_is_told_and_more_is_refused(tree: Path, tmp_path: Path) -> None:
    said: list[str] = []
    write(tree, "small", "outputs/big", "ignored/big")
    for name, size in (("outputs/big", 300), ("ignored/big", 300)):
        os.truncate(tree / name, size << 20)
    (tree / ".gitignore").write_text("ignored\n")
    taken(tree, tmp_path / "first", say=said.append)
    assert said == []
    write(tree, "data/raw/1")
    os.truncate(tree / "data" / "raw" / "1", 21 << 20)
    taken(tree, tmp_path / "second", say=said.append)
    (line,) = said
    assert line.startswith(
        "the snapshot has 21 MiB that git neither tracks nor ignores: data (21 MiB)"
    )
    os.truncate(tree / "data" / "raw" / "1", 201 << 20)
    before = git(tree, "count-objects", "-v")
    with pytest.raises(SnapshotFailed, match=r"201 MiB .* data \(201 MiB\).*cluster.snapshot=none"):
        taken(tree, tmp_path / "third")
    assert git(tree, "count-objects", "-v") == before
    assert not (tmp_path / "third").exists()


def test_links_that_lead_out_lead_to_the_same_place(tree: Path, tmp_path: Path):
    write(tmp_path, "shared/1")
    (tree / "data").symlink_to("../shared")
    (tree / "sub").mkdir()
    (tree / "sub" / "inside").symlink_to("../train.py")
    (tree / "broken").symlink_to("nowhere")
    code = Path(taken(tree, tmp_path / "deep" / "er" / "code").path)
    assert (code / "data" / "1").read_text() == "x"
    assert os.readlink(code / "sub" / "inside") == "../train.py"
    assert os.readlink(code / "broken") == "nowhere"


def test_submodules_and_repositories_inside_are_shared(tree: Path, tmp_path: Path):
    library = repository(tmp_path / "library")
    allowed = ("-c", "protocol.file.allow=always")
    git(tree, *allowed, "submodule", "--quiet", "add", str(library), "third/lib")
    git(tree, *allowed, "submodule", "--quiet", "add", str(library), "third/empty")
    git(tree, "commit", "-q", "-m", "libraries")
    git(tree, "submodule", "--quiet", "deinit", "third/empty")
    repository(tree / "clone")
    said: list[str] = []
    found = taken(tree, tmp_path / "code", say=said.append)
    assert said == [found.problem]
    code = Path(found.path)
    assert (code / "third" / "lib" / "train.py").exists()
    assert (code / "clone" / "train.py").exists()
    assert os.listdir(code / "third" / "empty") == []
    assert found.problem.endswith("shared, not set aside: clone, third/lib")
    assert found.build(Build()).git_problem == found.problem
    remove(found, ENV)
    assert (tree / "third" / "lib" / "train.py").exists()
    assert git(tree, "worktree", "prune", "--verbose") == ""


def test_hooks_filters_and_settings_of_the_user(tree: Path, tmp_path: Path):
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/ran\n")
    hook.chmod(0o755)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        (tree / ".git" / "hooks" / name).symlink_to(hook)
    for name, value in {
        "core.fsmonitor": str(hook),
        "core.splitIndex": "true",
        "commit.gpgSign": "true",
        "core.safecrlf": "true",
        "diff.external": str(hook),
        "filter.upper.clean": "tr a-z A-Z",
        "filter.upper.smudge": "tr A-Z a-z",
    }.items():
        git(tree, "config", name, value)
    (tree / ".gitattributes").write_text("*.up filter=upper\n*.txt text eol=crlf\n")
    (tree / "a.up").write_text("abc\n")
    (tree / "a.txt").write_bytes(b"a\nb\r\n")
    (tmp_path / "ran").unlink(missing_ok=True)
    shared = sorted((tree / ".git").glob("sharedindex.*"))
    environ = {**ENV, "GIT_LITERAL_PATHSPECS": "1", "GIT_INDEX_FILE": "x", "LANGUAGE": "de"}
    write(tree, "outputs/log")
    found = taken(tree, tmp_path / "code", environ)
    assert (tmp_path / "code" / "a.up").read_text() == "abc\n"
    assert git(tree, "show", f"{found.tree_commit}:a.up") == "ABC"
    assert not (tmp_path / "code" / "outputs").exists()
    remove(found, environ)
    assert not (tmp_path / "ran").exists()
    assert sorted((tree / ".git").glob("sharedindex.*")) == shared


def test_what_git_refuses(tree: Path, tmp_path: Path, monkeypatch: Any):
    with pytest.raises(SnapshotFailed, match=r"dubious ownership.*cluster.snapshot=none"):
        taken(tree, tmp_path / "code", {**ENV, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    with pytest.raises(SnapshotFailed, match="git is not installed"):
        taken(tree, tmp_path / "code", {**ENV, "PATH": str(tmp_path)})
    # a repository in which nothing is yet
    (tree / "clone").mkdir()
    git(tree / "clone", "init", "-q")
    with pytest.raises(SnapshotFailed, match="does not have a commit checked out"):
        taken(tree, tmp_path / "code")
    shutil.rmtree(tree / "clone")
    # nothing is left
    assert sorted(os.listdir(tmp_path)) == ["a tree"]
    assert git(tree, "for-each-ref", "refs/lllaunch") == ""
    assert git(tree, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_place_that_is_taken_stays_as_it_is(tree: Path, tmp_path: Path):
    code = tmp_path / "code"
    write(code, "precious")
    with pytest.raises(SnapshotFailed, match="not empty"):
        taken(tree, code)
    assert (code / "precious").read_text() == "x"
    remove(Snapshot(str(code), "", "", str(tree), changed=False), ENV)
    assert (code / "precious").read_text() == "x"
    (code / "precious").unlink()
    assert (Path(taken(tree, code).path) / "train.py").exists()


def test_places(tree: Path, tmp_path: Path, monkeypatch: Any):
    (tmp_path / "link").symlink_to(tree)
    found = taken(tmp_path / "link", tree / "outputs" / "code")
    code = str(tree / "outputs" / "code")
    assert found.place(str(tree)) == code
    assert found.place(str(tmp_path / "link" / "sub" / "a.py")) == f"{code}/sub/a.py"
    assert found.place(f"{tree}s/a.py") == f"{tree}s/a.py"
    assert found.place(f"{code}/a.py") == f"{code}/a.py"
    monkeypatch.chdir(tree)
    assert found.place("conf") == f"{code}/conf"
    monkeypatch.chdir(tmp_path)
    assert found.place("conf") == "conf"


def test_a_snapshot_goes_with_the_last_who_holds_it(tree: Path, tmp_path: Path) -> None:
    snapshot = taken(tree, tmp_path / "code")
    hold(snapshot, ["launcher"])
    hold(snapshot, ["0_0", "0_1"])
    for holder in ("0_1", "launcher", "0_1"):
        let_go(snapshot, holder)
        assert os.path.isdir(snapshot.path)
    let_go(snapshot, "0_0")
    assert not os.path.lexists(snapshot.path)
    assert not os.path.lexists(f"{snapshot.path}.holders")
    # nobody else finds anything to remove
    let_go(snapshot, "0_0")
