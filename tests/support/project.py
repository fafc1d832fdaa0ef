"""A user's project directory, and lllaunch run in it as its user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

# far more than any of these runs takes: it bounds a hang
_SECONDS = 240


class Project:
    """A directory with configs and scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def experiment(self, name: str, launch: str, more: str = "") -> Path:
        """conf/exp/NAME.yaml with a launch node in YAML's flow form."""
        text = f"# @package _global_\nlaunch: {launch}\n{dedent(more)}"
        return self.write(f"conf/exp/{name}.yaml", text)

    def lllaunch(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "lllaunch", *args, env=env)

    def python(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args],
            cwd=self.root,
            env=environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def run_dirs(self) -> list[Path]:
        """The output directories of all runs so far, oldest first."""
        found = {path.parent for path in self.root.rglob(".hydra")}
        return sorted(found, key=lambda path: path.stat().st_ctime_ns)

    def run_dir(self) -> Path:
        (only,) = self.run_dirs()
        return only


def environment() -> dict[str, str]:
    """The tests' own environment without what would change Hydra's output."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYDRA_")}


def result(run_dir: Path) -> Any:
    return json.loads((run_dir / "result.json").read_text())
