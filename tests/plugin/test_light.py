"""Hydra imports the plugin at the start of every app, also of those that have no use for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

APP = """
import json, sys
import hydra

@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    print(json.dumps(sorted(sys.modules)))

main()
"""
# Of lllaunch. All that these import, Hydra has imported before.
ALLOWED = {
    "hydra_plugins.lllaunch_launcher",
    "hydra_plugins.lllaunch_launcher.launcher",
    "hydra_plugins.lllaunch_launcher.sweeper",
    "lllaunch",
    "lllaunch.hydra_compat",
}


# Runs the app as a script does, but where no plugin is found.
WITHOUT = """
import runpy, sys
sys.path.insert(0, "hide")
runpy.run_path("app.py", run_name="__main__")
"""


def modules_of(directory: Path, *command: str) -> set[str]:
    (directory / "app.py").write_text(APP)
    (directory / "hide").mkdir(exist_ok=True)
    (directory / "hide" / "hydra_plugins.py").write_text("__path__ = []\n")
    ended = subprocess.run(
        [sys.executable, *command, "hydra.output_subdir=null", "hydra.run.dir=."],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout))


def test_an_unrelated_app_imports_next_to_nothing_because_of_the_plugin(tmp_path: Path) -> None:
    without, found = modules_of(tmp_path, "-c", WITHOUT), modules_of(tmp_path, "app.py")
    assert "hydra_plugins.lllaunch_launcher" not in without
    assert "hydra_plugins.lllaunch_launcher.launcher" in found
    added = {name for name in found - without if name.partition(".")[0] != "hydra_plugins"}
    assert added <= ALLOWED
    assert not {"torch", "rich", "psutil", "asyncio", "pynvml"} & found
