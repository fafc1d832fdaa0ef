"""Git repositories made for a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.launching import WAIT

# of this machine's user nothing counts
ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(directory: Path | str, *arguments: str) -> str:
    """Call git in a directory; return what it prints."""
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b", *arguments],
        cwd=directory,
        env=ENV,
        check=True,
        capture_output=True,
        timeout=WAIT,
    )
    return os.fsdecode(done.stdout).strip()


def write(directory: Path, *names: str, text: str = "x") -> None:
    """Write files of one content, and the directories that they are in."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def commit(directory: Path) -> None:
    """Commit all that is there."""
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "all")


def repository(path: Path) -> Path:
    """Make a repository with one commit."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    write(path, "train.py", text="1\n")
    write(path, ".gitignore", text="*.so\n*.log\n__pycache__/\n")
    commit(path)
    return path
