"""Imports point downwards and stay cheap, and each name stands for one thing."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# what costs more than all of lllaunch, or is imported only where it is needed
HEAVY = ("torch", "numpy", "rich", "psutil", "pynvml", "asyncio", "multiprocessing", "filelock")


def imported_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running ``code``."""
    show = f"{code}\nimport sys; print(*sys.modules)"
    # coverage would import what it needs itself
    env = {name: v for name, v in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    # without site: packages' .pth files import things of their own there
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60)
    return set(done.stdout.split())


def test_imports_point_downwards() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
    ]
    done = subprocess.run(
        [*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_itself_imports_nothing_else() -> None:
    assert imported_by("import lllaunch") - imported_by("") == {"lllaunch", "__future__"}


@pytest.mark.parametrize(
    "module",
    [
        "lllaunch.__main__",
        "lllaunch.app.app",
        "lllaunch.config.resolve",
        "lllaunch.run.execute",
        "lllaunch.spawner.client",
    ],
)
def test_what_the_launcher_imports_is_light(module: str) -> None:
    found = {name.partition(".")[0] for name in imported_by(f"import {module}")}
    assert found.isdisjoint(HEAVY)


def test_a_run_without_timers_loads_no_server_of_timers() -> None:
    assert "lllaunch.timer.service" not in imported_by("import lllaunch.supervisor.watchdog")


@pytest.mark.parametrize("module", ["lllaunch.run.execute", "lllaunch.spawner.server"])
def test_below_the_app_nothing_imports_hydra(module: str) -> None:
    found = {name.partition(".")[0] for name in imported_by(f"import {module}")}
    assert found.isdisjoint({"hydra", "omegaconf"})


def test_public_names_are_there_and_no_others() -> None:
    import lllaunch

    assert lllaunch.__version__
    assert set(lllaunch.__all__) <= set(dir(lllaunch))
    with pytest.raises(AttributeError, match="no attribute 'mian'"):
        lllaunch.mian  # type: ignore[attr-defined]  # noqa: B018


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:hydra_plugins\.)?lllaunch[\w.:]*)`", ARCHITECTURE)))
)
def test_what_the_page_of_the_architecture_names_is_there(name: str) -> None:
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)


def test_the_page_of_the_architecture_begins_with_the_mission() -> None:
    table = ARCHITECTURE.partition("| words | function | test |")[2].partition("\n\n")[0]
    assert ARCHITECTURE.index("|") < ARCHITECTURE.index("```")
    for words in ("launcher plugin", "composed config", "calls", "start_processes", "per-attempt"):
        assert re.search(rf"^\| [^|]*{words}[^|]*\| .*`lllaunch.*\| `tests/", table, re.M), words


def test_every_room_is_on_the_page_of_the_architecture() -> None:
    rooms = {path.parent.name for path in (ROOT / "lllaunch").glob("*/__init__.py")} - {"conf"}
    assert {room for room in rooms if f"`lllaunch.{room}`" not in ARCHITECTURE} == set()


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = re.findall(r"(?:lllaunch|tests|docs)/[\w/]+\.(?:py|md)", CONTRIBUTING + ARCHITECTURE)


@pytest.mark.parametrize("path", sorted(set(NAMED)))
def test_files_that_contributing_and_the_architecture_name_are_there(path: str) -> None:
    assert (ROOT / path).is_file()
