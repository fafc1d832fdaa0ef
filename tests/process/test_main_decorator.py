"""`lllaunch.main`: a user's own Hydra app whose function runs in workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Project, result

TRAIN = """
import logging, os, sys, time
import lllaunch
from omegaconf import DictConfig, OmegaConf
from hydra.core.hydra_config import HydraConfig

OmegaConf.register_new_resolver("double", lambda x: 2 * x)
log = logging.getLogger(__name__)

class Loss:
    def __init__(self, value):
        self.value = value

@lllaunch.main(config_path="configs", config_name="train", version_base="1.3")
def train(cfg: DictConfig):
    log.info("rank %s logs", os.environ["RANK"])
    facts = OmegaConf.to_container(cfg, resolve=True)
    facts |= {
        "output_dir": HydraConfig.get().runtime.output_dir,
        "job": HydraConfig.get().job.name,
        "argv": sys.argv[1:],
        "here": os.getcwd(),
    }
    logged = "logged" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if os.environ["RANK"] == "0":
        open(logged, "w").close()
    if cfg.fail == os.environ["RANK"]:
        while not os.path.exists(logged):
            time.sleep(0.01)
        raise ValueError("the reason")
    return Loss(facts) if cfg.own_class else facts

if __name__ == "__main__":
    train()
    print({rank: getattr(value, "value", value) for rank, value in train.return_values().items()})
"""

CONFIG = """
lr: 0.5
twice: ${double:${lr}}
moment: ${now:%H%M%S%f}
mixed: r${oc.env:LOCAL_RANK}-${now:%S%f}
fail: none
own_class: false
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "my project")
    project.write("train.py", TRAIN)
    project.write("configs/train.yaml", CONFIG)
    return project


def values(run: Path) -> dict[int, dict[str, object]]:
    found = result(run)["return_values"]
    return {int(rank): value["value"] for rank, value in found.items()}


def test_all_ranks_get_the_same_config_composed_once(project: Project) -> None:
    ended = project.python("train.py", "launch.nproc=2", "lr=3")
    assert ended.returncode == 0, ended.stderr
    run = project.run_dir()
    first, second = values(run)[0], values(run)[1]
    mixed = [str(each.pop("mixed")).partition("-") for each in (first, second)]
    assert [rank for rank, *_ in mixed] == ["r0", "r1"]
    assert mixed[0][2] == mixed[1][2]
    assert first == second
    assert first["twice"] == 6
    assert first["output_dir"] == str(run)
    assert first["job"] == "train"
    assert first["argv"] == ["launch.nproc=2", "lr=3"]
    assert first["here"] == str(project.root)


GUARDED = """
import os, sys
from dataclasses import dataclass
import hydra, lllaunch
from omegaconf import OmegaConf

offset = None
text = open("data.txt").read()

@lllaunch.main(config_path="configs", config_name="train", version_base="1.3")
def train(cfg):
    facts = [offset, mode, cfg.shifted, Made.__name__, sys.orig_argv[-1]]
    other = dict(hydra.compose("other", ["+b=2"]))
    return facts + [text, os.path.basename(os.getcwd()), other]

if __name__ == "__main__":
    mode = sys.argv.pop(1)
    offset = 5
    OmegaConf.register_new_resolver("shift", lambda x: x + offset)

    @dataclass
    class Made:
        x: int = 1

    train()
"""


def test_what_the_script_does_behind_its_guard_is_there_in_workers(project: Project) -> None:
    project.write("guarded.py", GUARDED)
    project.write("configs/train.yaml", "lr: 1\nshifted: ${shift:${lr}}\n")
    project.write("configs/other.yaml", "a: 1\n")
    # the script runs where it ran in the launcher, its function where Hydra says
    project.write("data.txt", "here")
    chdir = ("hydra.job.chdir=true", "hydra.run.dir=job")
    ended = project.python("guarded.py", "fast", *chdir, "launch.nproc=2", "lr=3")
    assert ended.returncode == 0, ended.stderr
    expected = [5, "fast", 8, "Made", "lr=3", "here", "job", {"a": 1, "b": 2}]
    assert values(project.run_dir()) == {0: expected, 1: expected}


def test_a_job_without_logging_of_its_own_has_hydras(project: Project) -> None:
    ended = project.python("train.py", "hydra/job_logging=none")
    assert ended.returncode == 0, ended.stderr
    assert "rank 0 logs" in ended.stdout + ended.stderr


FROZEN = """
from dataclasses import dataclass
import lllaunch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

@dataclass(frozen=True)
class Config:
    lr: float = 1.0

ConfigStore.instance().store("frozen", Config)

@lllaunch.main(config_path="configs", version_base="1.3")
def train(cfg):
    return str(OmegaConf.to_object(cfg))

if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize(
    ("config", "words", "value"),
    [
        ("lr: 1", ["--config-name=frozen"], "Config(lr=1.0)"),
        ("lr: 1", ["--config-name=train", "+launch.env.X=1"], "{'lr': 1}"),
        # a node launch of the app's own configs
        ("launch: {nproc: 2}", ["--config-name=train"], "'nproc': 2"),
        ("workers: ${launch.nproc}", ["--config-name=train", "launch.nproc=2"], "'nproc': 2"),
    ],
)
def test_the_function_gets_no_node_that_its_own_configs_have_not(
    project: Project, config: str, words: list[str], value: str
) -> None:
    project.write("frozen.py", FROZEN)
    project.write("configs/train.yaml", config)
    ended = project.python("frozen.py", *words)
    assert ended.returncode == 0, ended.stderr
    found = str(values(project.run_dir())[0])
    assert value in found if "nproc" in value else value == found


@pytest.mark.smoke
def test_failed_workers_end_the_app_with_3(project: Project) -> None:
    ended = project.python("train.py", "launch.nproc=2", "launch.max_restarts=1", "fail='1'")
    assert ended.returncode == 3
    assert "ValueError: the reason" in ended.stderr
    assert 'train.py", line' in ended.stderr
    # the traceback begins at the user's function
    assert "in train" in ended.stderr
    assert "/lllaunch/" not in ended.stderr
    assert "<module>" not in ended.stderr
    # and nothing of Hydra's stands before or after the report
    assert "Error executing job" not in ended.stderr
    assert "HYDRA_FULL_ERROR" not in ended.stderr
    assert "  Logs: " in ended.stderr.splitlines()[-1]
    run = project.run_dir()
    assert result(run)["root_cause"]["rank"] == 1
    # rank 0 has logged where Hydra would, the others in their directories
    said = [line.split("][", 1)[1] for line in (run / "train.log").read_text().splitlines()]
    assert said == ["__main__][INFO] - rank 0 logs"] * 2
    for attempt in (0, 1):
        log = (run / f"attempt_{attempt}/1/train.log").read_text()
        assert log.endswith("[__main__][INFO] - rank 1 logs\n")
        assert log.count("\n") == 1
        assert not (run / f"attempt_{attempt}/0/train.log").exists()


@pytest.mark.parametrize(
    "more", [(), ("-m", "+a=1,2", "hydra/launcher=basic", "hydra/sweeper=basic")]
)
def test_a_wrong_launch_config_ends_the_app_with_2(project: Project, more: tuple[str, ...]) -> None:
    project.write("configs/train.yaml", f"{CONFIG}launch:\n  tee: al\n")
    ended = project.python("train.py", *more)
    assert ended.returncode == 2
    line = CONFIG.count("\n") + 2
    wrong = f"lllaunch: configs/train.yaml:{line}: launch.tee: expected a mask"
    assert ended.stderr.splitlines()[-1].startswith(wrong)
    assert "did you mean 'all'?" in ended.stderr
    assert "HYDRA_FULL_ERROR" not in ended.stderr
    assert list(project.root.rglob("attempt_*")) == []


def test_a_function_of_another_module_is_found_there(project: Project) -> None:
    project.write("pkg/__init__.py", "")
    project.write(
        "pkg/library.py",
        """
        import lllaunch

        @lllaunch.main(version_base="1.3", config_path=None)
        def run(cfg):
            return __name__
        """,
    )
    # unguarded, as hydra.main allows
    project.write("start.py", "from pkg.library import run\nrun()\n")
    ended = project.python("start.py", "launch.nproc=2")
    assert ended.returncode == 0, ended.stderr
    assert values(project.run_dir()) == {0: "pkg.library", 1: "pkg.library"}


def test_called_with_a_config_it_is_the_function_itself(project: Project) -> None:
    project.write(
        "plain.py",
        """
        from omegaconf import OmegaConf
        import train

        print(train.Loss.__module__, train.train.__name__)
        train.os.environ["RANK"] = "5"
        try:
            train.train(OmegaConf.create({"fail": "5"}))
        except Exception as error:
            print(type(error).__name__)
        """,
    )
    ended = project.python("plain.py")
    assert ended.stdout.splitlines() == ["train train", "ValueError"], ended.stderr
