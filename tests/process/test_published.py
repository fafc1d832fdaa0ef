"""The tests of an sdist pass; its wheel works in an empty directory, and without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from process.test_docs import README, ROOT, TUTORIAL, outputs
from support.launching import WAIT

pytest.importorskip("hatchling.build")

LINK = re.compile(r"\]\(([^()\s]+)\)")


def build(what: str, source: Path, directory: Path) -> Path:
    code = f"import sys, hatchling.build as b; print(b.build_{what}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(directory)]
    return directory / subprocess.check_output(command, cwd=source, text=True).split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sdist")
    archive = build("sdist", ROOT, directory)
    shutil.unpack_archive(archive, directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """The site-packages of an environment that has the wheel and nothing else."""
    venv.create(tmp_path / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv" / "bin" / "python")]
    # make's names a file of the checkout
    environ = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    options = ("--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "install", *options, wheel], env=environ, check=True)
    (found,) = tmp_path.glob("venv/lib/python*/site-packages")
    return found


def link(names: Iterable[str], site: Path) -> None:
    """Let an environment have packages, and all that they require, from that of the tests."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
        required = map(Requirement, found.requires or ())
        link([r.name for r in required if not r.marker or r.marker.evaluate({"extra": ""})], site)


def test_the_tests_of_an_sdist_pass(sdist: Path) -> None:
    some = ("test_machine.py", "test_config_reference.py", "test_ci_examples.py")
    command = [sys.executable, "-m", "pytest", "-q", *(f"tests/unit/{name}" for name in some)]
    subprocess.run(command, cwd=sdist, check=True, timeout=2 * WAIT)


def test_the_readme_has_absolute_links_and_runs_and_so_does_the_tutorial(
    wheel: Path, site: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        links = LINK.findall(archive.read(name).decode())
    assert len(links) == len(LINK.findall(README.read_text()))
    assert all(link.startswith("https://") for link in links)
    assert any(link.endswith("/raw/v0.1.0/docs/pictures/run.png") for link in links)
    # .pth files of a directory that one names are not read: the tests' own lllaunch is not seen
    (site / "others.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
    outputs(README, tmp_path, f"{tmp_path}/venv/bin")
    outputs(TUTORIAL, tmp_path / "tutorial", f"{tmp_path}/venv/bin")


def test_without_torch_all_works_that_needs_none(site: Path, tmp_path: Path) -> None:
    link(["hydra-core", "msgspec"], site)
    Path("conf/exp").mkdir(parents=True)
    node = "{entrypoint: echo, args: [hello], nproc: 2, preload: [torch.nn]}"
    Path("conf/exp/one.yaml").write_text(f"# @package _global_\nlaunch: {node}\n")

    def lllaunch(*args: str, code: int = 0) -> str:
        command = [str(tmp_path / "venv" / "bin" / "lllaunch"), *args]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    assert "preload:\n  - torch.nn" in lllaunch("plan", "+exp=one")
    assert "1 experiment, no problems" in lllaunch("check")
    lllaunch("init", "--name", "two", "--no-python", "echo", "hi")
    assert "hi" in lllaunch("+exp=two")
    assert "pip install jinja2" in lllaunch("report", "--format", "html", code=2)
    here = ("+exp=one", "launch.preload=[]")
    assert "hello" in lllaunch(*here)
    assert "2 of 2 jobs succeeded" in lllaunch("-m", *here, "launch.nproc=1,2")
    assert "torch.nn" in lllaunch("+exp=one", code=2)
    two = (*here, "launch.nnodes=2", "launch.node_rank=0", "launch.rdzv.endpoint=localhost:1")
    missing = {"role=x": "torch", "nproc=gpu": "nvidia-ml-py", "rdzv.interface=lo": "psutil"}
    for override, package in missing.items():
        assert f"pip install {package}" in lllaunch(*two, f"launch.{override}", code=2)
    page = (ROOT / "docs" / "install-without-torch.md").read_text()
    (names,) = re.findall(r"^pip install (hydra-core .*)$", page, re.MULTILINE)
    link(names.split(), site)
    assert "expected a network interface" in lllaunch(*two, "launch.rdzv.interface=lo0", code=2)
