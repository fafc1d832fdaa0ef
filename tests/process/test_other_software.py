"""Software of others that sends a script's functions and classes to processes of its own.

In a worker the user's script is ``__main__``: pickle says so, and cloudpickle sends what is in
``__main__`` by value. ray and dask are too large for a test; a worker process of theirs does what
`elsewhere` does: it unpickles where ``__main__`` is another module.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Project, result

COMMON = """
import logging, multiprocessing, os, pickle, subprocess, sys

import cloudpickle

log = logging.getLogger(__name__)


class Thing:
    def __init__(self, x):
        self.x = x


def double(thing):
    return Thing(thing.x * 2)


def pools():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            (thing,) = pool.map_async(double, [Thing(1)]).get(60)
            assert (type(thing), thing.x) == (Thing, 2), method


ELSEWHERE = (
    "import pickle, sys, cloudpickle\\n"
    "function, thing = pickle.load(sys.stdin.buffer)\\n"
    "sys.stdout.buffer.write(cloudpickle.dumps(function(thing)))\\n"
)


def elsewhere():
    call = cloudpickle.dumps((double, Thing(1)))
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=call, capture_output=True)
    thing = pickle.loads(done.stdout)
    assert (type(thing), thing.x) == (Thing, 2), done.stderr


def loky():
    from joblib import Parallel, delayed

    found = Parallel(n_jobs=2, backend="loky")(delayed(double)(Thing(i)) for i in range(2))
    assert [thing.x for thing in found] == [0, 2]


def check():
    pools()
    elsewhere()
    if "QUICKLY" not in os.environ:
        loky()
    assert (__name__, log.name, Thing.__module__) == ("__main__",) * 3
    assert sys.modules["__main__"] is sys.modules["__mp_main__"]
    assert sys.modules["__main__"].__dict__ is globals()


"""
GUARD = 'if __name__ == "__main__":\n    '
SCRIPT = COMMON + GUARD + "check()\n"
APP = COMMON + "import hydra, lllaunch\n\n@{}\ndef app(cfg):\n    check()\n\n" + GUARD + "app()\n"

QUICKLY = {"QUICKLY": "1"}
PRELOAD = "[multiprocessing.pool, concurrent.futures.process]"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pytest.importorskip("cloudpickle")
    return Project(tmp_path)


def succeeds(project: Project, *command: str, env: dict[str, str] | None = None) -> None:
    ended = project.python(*command, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (path,) = project.root.rglob("result.json")
    assert result(path.parent)["state"] == "succeeded"


def test_a_script_in_a_fork_of_what_has_imported_multiprocessing(project: Project) -> None:
    pytest.importorskip("joblib")
    project.write("script.py", SCRIPT)
    preload = f"launch.preload={PRELOAD}"
    succeeds(project, "-m", "lllaunch", "launch.entrypoint=script.py", preload)


def test_an_app_in_a_fork_of_what_has_imported_multiprocessing(project: Project) -> None:
    pytest.importorskip("joblib")
    project.write("own.py", APP.format("lllaunch.main(config_path=None)"))
    succeeds(project, "own.py", f"launch.preload={PRELOAD}")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_script_or_an_app_of_hydras_in_a_process_of_its_own(
    project: Project, start_method: str
) -> None:
    project.write("script.py", SCRIPT)
    method = f"launch.start_method={start_method}"
    succeeds(project, "-m", "lllaunch", "launch.entrypoint=script.py", method, env=QUICKLY)
    (project.run_dir() / "result.json").unlink()
    project.write("app.py", APP.format('hydra.main(config_path=None, version_base="1.3")'))
    succeeds(project, "app.py", "-m", "hydra/launcher=lllaunch", f"+{method}", env=QUICKLY)
