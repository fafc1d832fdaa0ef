"""What the config says for workers is there when the first module is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import launch
from support.sweeping import SweepProject

# copies all, as libraries do that start programs; that is no reason not to share it
EARLY = """
import os
everything = dict(os.environ)
HOME = os.environ.get("HF_HOME")
with open(os.path.join(os.path.dirname(__file__), "imports"), "a") as file: file.write("x")
"""
WORK = """
import os, time
import early
print(early.HOME, os.environ["HF_HOME"], os.environ.get("SEED"), time.strftime("%Z"))
"""


def test_preloaded_modules_see_the_variables_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "work.py").write_text(WORK)
    node = {"entrypoint": "work.py", "nproc": 2, "preload": ["early"]}
    env = {"HF_HOME": "/models", "TZ": "JST-9", "SEED": "${worker:rank}-${worker:attempt}"}
    ended = launch(tmp_path, {**node, "env": env}, environ={"HF_HOME": "/other"})
    assert ended.code == 0, ended.err
    seen = [ended.log(rank).decode() for rank in range(2)]
    assert seen == [f"/models /models {rank}-0 JST\n" for rank in range(2)]
    assert (tmp_path / "imports").read_text() == "x"


@pytest.mark.parametrize(
    ("override", "imports", "seen"),
    [
        ("launch.env.SEED=1,2,3", "x", ["/models /models 1", "/models /models 3"]),
        # it was read when the first job's was there: the others' workers import it anew
        ("launch.env.HF_HOME=/a,/b,/c", "xxx", ["/a /a 0", "/c /c 0"]),
    ],
)
def test_jobs_share_what_is_preloaded_unless_it_has_read_what_differs(
    tmp_path: Path, override: str, imports: str, seen: list[str]
) -> None:
    project = SweepProject(tmp_path)
    project.write("early.py", EARLY)
    project.write("work.py", WORK)
    project.experiment(
        "a", "{entrypoint: work.py, preload: [early], env: {HF_HOME: /models, SEED: 0}}"
    )
    ended = project.run("+exp=a", override)
    assert ended.code == 0, ended.err
    assert [project.log(job).rpartition(" ")[0] for job in (0, 2)] == seen
    assert (tmp_path / "imports").read_text() == imports
