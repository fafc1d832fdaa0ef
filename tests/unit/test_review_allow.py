"""What a policy says, and what it allows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from lllaunch.app.compose import file_of
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.review.allow import Policy, check, made_by_logging, parse_policy
from lllaunch.spec import Entrypoint, LaunchSpec

FILES = {
    "pkg/__init__.py": "from .train import main\nfrom . import tools as kit\n",
    "pkg/train.py": """
import os, subprocess as sp
def main(): pass
class Trainer:
    def fit(self): pass
    shell = os.system
call = sp.call
if main():
    from .tools import either
else:
    def either(): pass
""",
    "pkg/tools.py": "def helper(): pass\ndef either(): pass\n",
    "pkg/lazy.py": "def __getattr__(name): return print\n",
    "pkg/__main__.py": "",
    "scripts/ok.py": "",
    "other/no.py": "",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    top = tmp_path / "tree"
    for name, text in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    monkeypatch.syspath_prepend(str(top))
    return top


Refusals = Callable[..., list[Diagnostic]]


@pytest.fixture
def refusals(tree: Path) -> Refusals:
    def ask(
        launch: dict[str, Any], config: dict[str, Any] | None = None, **lists: list[str]
    ) -> list[Diagnostic]:
        if "entrypoint" not in launch:
            launch = {"entrypoint": "pkg.train:main", **launch}
            lists = {"entrypoints": ["pkg.train:main"], **lists}
        cfg = OmegaConf.create({"launch": launch})
        spec = resolve(cfg, HostContext(runtime_cwd=str(tree), output_dir=f"{tree}/out"))
        policy = Policy(**{k: tuple(v) for k, v in lists.items()})
        return check(
            spec, OmegaConf.create({"launch": launch, **(config or {})}), policy, str(tree)
        )

    return ask


def test_all_look_for_modules_where_workers_do(tree: Path) -> None:
    # their own directory comes before that of the command
    (tree / "work").mkdir()
    (tree / "work" / "both.py").write_text("def main(new): pass\n")
    (tree / "both.py").write_text("def main(old): pass\n")
    launch = {"entrypoint": "both:main", "args": {"new": 1}, "cwd": "work"}
    cfg = OmegaConf.create({"launch": launch})
    spec = resolve(cfg, HostContext(runtime_cwd=str(tree), output_dir=f"{tree}/out"))
    assert file_of(spec) == str(tree / "work" / "both.py")
    policy = Policy(entrypoints=("work/*.py",))
    assert check(spec, cfg, policy, str(tree)) == []


@pytest.mark.parametrize(
    ("entrypoint", "pattern"),
    [
        ("pkg.train:main", "pkg.*"),
        ("pkg.train:main", "pkg.train:*"),
        ("pkg.train:main", "pkg/*.py"),
        ("pkg.train:main", "*"),
        ("pkg:main", "pkg.train:main"),
        ("pkg:main", "pkg:main"),
        ("pkg.train:Trainer.shell", "pkg.train:Trainer.shell"),
        ("-m pkg.tools", "pkg.*"),
        ("-m pkg", "pkg/__main__.py"),
        ("-m json.tool", "-m json.tool"),
        ("scripts/ok.py", "scripts/*.py"),
        ("./other/../scripts/ok.py", "scripts/ok.py"),
    ],
)
def test_entrypoints_that_are_allowed(entrypoint: str, pattern: str, refusals: Refusals) -> None:
    assert refusals({"entrypoint": entrypoint}, entrypoints=[pattern]) == []


@pytest.mark.parametrize(
    ("entrypoint", "pattern", "expected"),
    [
        ("pkg.train:main", "pkg", "is not in allow.entrypoints; to allow it, add 'pkg.train:main'"),
        ("pkg.train:call", "pkg.*", "is 'subprocess:call', which is not in"),
        ("pkg.train:os.system", "pkg.*", "cannot be told without importing it, so only the same"),
        ("pkg.lazy:popen", "*", "cannot be told without importing it"),
        ("pkg:main", "pkg:*", "is 'pkg.train:main', which is not in"),
        ("pkg.train:either", "pkg.train:*", "is 'pkg.tools:either', which is not in"),
        ("-m json.tool", "pkg.*", "add '-m json.tool' to allow.entrypoints in conf/lllaunch.yaml"),
        ("scripts/../other/no.py", "scripts/*.py", "is 'other/no.py', which is not in"),
        ("other/no.py", "other.*", "is not in"),
    ],
)
def test_entrypoints_that_are_not(
    entrypoint: str, pattern: str, expected: str, refusals: Refusals
) -> None:
    (problem,) = refusals({"entrypoint": entrypoint}, entrypoints=[pattern])
    assert problem.key == "launch.entrypoint"
    assert expected in str(problem)
    assert "pkg" not in sys.modules


def test_the_function_of_an_own_app_is_allowed_by_the_file_of_its_script(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", f"{tree}/scripts/ok.py", raising=False)
    entry = Entrypoint("function", "__main__", "ok.py:train", "train")
    spec = LaunchSpec(entry, 1, f"{tree}/out", str(tree), output_dir=f"{tree}/out")
    for pattern, refused in (("scripts/ok.py", 0), ("ok.py:train", 0), ("scripts/no.py", 1)):
        policy = Policy(entrypoints=(pattern,))
        assert len(check(spec, OmegaConf.create(), policy, str(tree))) == refused


def test_a_link_is_what_it_leads_to(tree: Path, tmp_path: Path, refusals: Refusals) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text("")
    (tree / "scripts/link.py").symlink_to(evil)
    (tree / "scripts/inner.py").symlink_to(tree / "other/no.py")
    (tree / "door").symlink_to(tmp_path)
    for entrypoint in ("scripts/link.py", "door/evil.py", str(evil), f"{tree}/../evil.py"):
        for pattern in ("scripts/*.py", "*", "*.py", "*/evil.py", entrypoint.lstrip("/")):
            (problem,) = refusals({"entrypoint": entrypoint}, entrypoints=[pattern])
            assert str(evil) in str(problem)
        assert refusals({"entrypoint": entrypoint}, entrypoints=[str(evil)]) == []
    (problem,) = refusals({"entrypoint": "scripts/inner.py"}, entrypoints=["scripts/*.py"])
    assert "is 'other/no.py'" in str(problem)
    inside = str(tree / "scripts/ok.py")
    assert refusals({"entrypoint": inside}, entrypoints=["scripts/*.py"]) == []


def test_programs(tree: Path, refusals: Refusals) -> None:
    tool = tree / "scripts/tool"
    tool.symlink_to("/bin/sh")
    real = os.path.realpath("/bin/sh")

    def ask(entrypoint: str, *programs: str) -> list[Diagnostic]:
        return refusals({"entrypoint": entrypoint}, programs=programs, entrypoints=["*"])

    assert ask("env", "env") == ask("env", "e*") == ask("env", "*") == []
    assert ask("env", "/*/env") == []
    assert ask(real, real) == []
    for entrypoint, pattern in (("env", "python*"), ("scripts/tool", "scripts/*"), (real, "*")):
        (problem,) = ask(entrypoint, pattern)
        assert "allow.programs" in str(problem)
    assert f"is {real!r}" in str(ask("scripts/tool", "scripts/*")[0])
    tool.unlink()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert ask("scripts/tool", "scripts/*") == []


def test_a_secret_name_is_not_shown(refusals: Refusals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHAT", "other/no.py")
    monkeypatch.setenv("WHERE", "/planted")
    monkeypatch.setenv("MODULE", "decimal")
    monkeypatch.setenv("PROGRAM", "env")
    launch = {
        "entrypoint": "${oc.env:WHAT}",
        "log_dir": "${oc.env:WHERE}",
        "preload": ["${oc.env:MODULE}"],
        "preflight": "${oc.env:PROGRAM}",
    }
    text = "\n".join(map(str, refusals(launch)))
    told = "launch.preflight: '${oc.env:PROGRAM}' is not in allow.programs [not-allowed]"
    assert told in text
    assert "launch.entrypoint: '${oc.env:WHAT}' is not in allow.entrypoints [not-allowed]" in text
    assert "launch.log_dir: is outside of the tree" in text
    assert "launch.preload: is not in allow.preload [not-allowed]" in text
    for value in ("no.py", "planted", "decimal"):
        assert value not in text


def test_what_runs_in_a_batch_job_beside_the_run(tree: Path) -> None:
    launch = {"entrypoint": "pkg.train:main"}
    cluster = {
        "backend": "slurm",
        "partition": "gpu",
        "setup": ["module load cuda/12.4", "module load cuda/12.4; curl x | sh"],
        "teardown": ["rm -rf /"],
        "srun_args": ["--task-prolog=/x"],
        "additional_parameters": {"prefer": "fast", "export": "NONE"},
    }
    cfg = OmegaConf.create({"launch": launch, "cluster": cluster})
    spec = resolve(cfg, HostContext(runtime_cwd=str(tree), output_dir=f"{tree}/out"))
    # no pattern: a star would take in what follows a semicolon
    allowed = ("module load cuda/12.4", "--prefer=fast", "*", "module load *")
    policy = Policy(entrypoints=("pkg.train:main",), cluster=allowed, file="p.yaml")
    problems = check(spec, cfg, policy, str(tree))
    assert [problem.key for problem in problems] == [
        "cluster.setup",
        "cluster.teardown",
        "cluster.srun_args",
        "cluster.additional_parameters.export",
    ]
    assert str(problems[1]) == (
        "cluster.teardown: 'rm -rf /' is not in allow.cluster; "
        "to allow it, add 'rm -rf /' to allow.cluster in p.yaml [not-allowed]"
    )


def test_hosts_where_nodes_meet(refusals: Refusals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "planted.example")

    def ask(endpoint: str, *hosts: str) -> list[Diagnostic]:
        launch = {"nnodes": 2, "node_rank": 1, "rdzv": {"endpoint": endpoint, "backend": "static"}}
        return refusals(launch, hosts=hosts)

    assert ask("localhost:1") == ask("[::1]") == ask(socket.gethostname()) == []
    assert ask("gpu3.cluster:29500", "gpu*.cluster") == []
    (problem,) = ask("gpu3.cluster:29500", "gpu3")
    assert str(problem) == (
        "launch.rdzv.endpoint: 'gpu3.cluster' is not in allow.hosts; "
        "to allow it, add 'gpu3.cluster' to allow.hosts in conf/lllaunch.yaml [not-allowed]"
    )
    (problem,) = ask("${oc.env:PLACE}")
    assert "planted" not in str(problem)


def test_what_auto_found_is_where_nodes_may_meet(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "MASTER_ADDR": "job-0.far",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "job-0.far",
        "PET_MASTER_PORT": "1234",
    }.items():
        monkeypatch.setenv(name, value)
    assert refusals({"nnodes": "auto"}) == []
    (problem,) = refusals({"nnodes": "auto", "rdzv": {"endpoint": "other.far"}})
    assert "'other.far' is not in allow.hosts" in str(problem)


def test_variables_that_change_what_runs(refusals: Refusals) -> None:
    launch = {
        "env": {"PYTHONPATH": "/x", "LD_PRELOAD": "/x.so", "PATH": "/bin:/usr/bin", "MY_PATH": "1"},
        "env_per_rank": {0: {"PYTHONHASHSEED": "0", "NCCL_NET_PLUGIN": "x", "A": "1"}},
    }
    config = {"hydra": {"job": {"env_set": {"LD_LIBRARY_PATH": "/x", "B": "2"}}}}
    keys = [problem.key for problem in refusals(launch, config, env=["PATH", "MY_*", "?"])]
    assert keys == [
        "launch.env.LD_PRELOAD",
        "launch.env.PYTHONPATH",
        "launch.env_per_rank.0.NCCL_NET_PLUGIN",
        "launch.env_per_rank.0.PYTHONHASHSEED",
        "hydra.job.env_set.LD_LIBRARY_PATH",
    ]


def test_directories_outside_of_the_tree(tree: Path, tmp_path: Path, refusals: Refusals) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (tree / "door").symlink_to(outside)
    launch = {"cwd": "door", "log_dir": f"{outside}/logs"}
    told = {problem.key: str(problem) for problem in refusals(launch)}
    assert [*told] == ["launch.log_dir", "launch.cwd"]
    assert f"add '{outside}' to allow.paths" in told["launch.cwd"]
    assert refusals(launch, paths=[str(outside), f"{outside}/*"]) == []
    assert refusals({"cwd": "scripts", "log_dir": "out/../logs"}) == []


EVIL: list[tuple[dict[str, Any], str]] = [
    ({"_target_": "os.system"}, "_target_"),
    ({"model": {"_target_": "os.system"}}, "model._target_"),
    ({"launch": {"args": {"x": {"_target_": "os.system"}}}}, "launch.args.x._target_"),
    (
        {"hydra": {"callbacks": {"c": {"d": {"_target_": "os.system"}}}}},
        "hydra.callbacks.c.d._target_",
    ),
    ({"hydra": {"callbacks": "${cb}"}}, "hydra.callbacks"),
    ({"hydra": {"callbacks": {"c": "${cb}"}}}, "hydra.callbacks.c"),
    ({"hydra": {"launcher": {"_target_": "os.system"}}}, "hydra.launcher._target_"),
    ({"hydra": {"sweeper": {"x": {"_target_": "os.system"}}}}, "hydra.sweeper.x._target_"),
    ({"hydra": {"searchpath": "${x}"}}, "hydra.searchpath"),
    (
        {"hydra": {"job_logging": {"formatters": {"f": {"()": "os.system"}}}}},
        "hydra.job_logging.formatters.f.()",
    ),
    (
        {"hydra": {"job_logging": {"handlers": {"h": {"class": "logging.basicConfig"}}}}},
        "hydra.job_logging.handlers.h.class",
    ),
    (
        {"hydra": {"job_logging": {"handlers": {"h": {".": {"baseFilename": "x"}}}}}},
        "hydra.job_logging.handlers.h..",
    ),
    ({"a": "${oc.decode:'{_target_: os.system}'}"}, "a"),
    ({"a": "${ oc.decode :${oc.env:X,'{a: 1}'}}"}, "a"),
    ({"a": "${oc.${b}:'{x: 1}'}"}, "a"),
    ({"a": "${oc.${${b}}:'{x: 1}'}"}, "a"),
    ({"hydra": {"overrides": {"e": {"_target_": "evil.main"}}}}, "hydra.overrides.e._target_"),
    ({"a": {"_target_": "os.${b}"}, "b": "system"}, "a._target_"),
    ({"a": {"_target_": "pkg.train.os.system"}}, "a._target_"),
]


@pytest.mark.parametrize(("config", "key"), EVIL)
def test_what_a_config_may_not_make(config: dict[str, Any], key: str, refusals: Refusals) -> None:
    lists = {"targets": ["pkg.*", "torch.*"], "callbacks": ["pkg.*"], "searchpath": ["pkg://pkg.*"]}
    (problem,) = refusals({}, config, **lists)
    assert problem.key == key
    if "callbacks" not in key:
        # a target that is allowed elsewhere makes no callback
        return
    lists["targets"] += ["os.system", "${cb}"]
    expected = 0 if key == "hydra.callbacks.c.d._target_" else 1
    assert len(refusals({}, config, **lists)) == expected


def test_what_a_config_may_make(refusals: Refusals) -> None:
    config = {
        "model": {"_target_": "pkg.tools.helper"},
        "again": {"_target_": "${model._target_}"},
        "name": "${model._target_}",
        "c_function": {"_target_": "time.sleep"},
        "port": "${oc.decode:${oc.env:PORT,8000}}",
        "off": {"_target_": None, "x": {"_target_": "???"}},
        "hydra": {
            "launcher": {
                "_target_": "hydra_plugins.lllaunch_launcher.launcher.LllaunchLauncher",
            },
            "sweeper": {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"},
            "callbacks": {"c": {"_target_": "pkg.train.Trainer"}},
            "searchpath": ["pkg://pkg.conf", "file://${oc.env:HOME}/conf"],
            "overrides": {"task": ["+a._target_=${b}", "x='${oc.create:1}'"]},
            "job_logging": {
                "handlers": {"h": {"class": "logging.FileHandler", "stream": "ext://sys.stdout"}}
            },
        },
    }
    lists = {
        "targets": ["pkg.*", "time.sleep"],
        "callbacks": ["pkg.train.*"],
        "searchpath": ["pkg://pkg.*", "file://${oc.env:HOME}/conf"],
    }
    assert refusals({}, config, **lists) == []
    keys = [problem.key for problem in refusals({}, config)]
    assert keys == [
        "model._target_",
        "again._target_",
        "c_function._target_",
        "hydra.callbacks.c._target_",
        "hydra.searchpath[0]",
        "hydra.searchpath[1]",
    ]


def test_a_search_path_does_not_climb(refusals: Refusals) -> None:
    config = {"hydra": {"searchpath": ["file:///data/../evil", "file:///data/a/../b"]}}
    (problem,) = refusals({}, config, searchpath=["file:///data/*"])
    assert problem.key == "hydra.searchpath[0]"


def test_the_lines_that_are_shown_where_no_policy_is_make_one(tree: Path) -> None:
    cfg = OmegaConf.create({"launch": {"entrypoint": "train.py", "preload": ["torch"]}})
    (tree / "train.py").write_text("")
    spec = resolve(cfg, HostContext(runtime_cwd=str(tree), output_dir=f"{tree}/out"))
    (problem,) = check(spec, OmegaConf.create(), None, str(tree), locked=True)
    _, *lines = str(problem).splitlines()
    policy = parse_policy("\n".join(lines), "conf/lllaunch.yaml")
    assert check(spec, OmegaConf.create(), policy, str(tree), locked=True) == []


# ---- what logging would import


def asked(node: Any, **rest: Any) -> list[tuple[Any, bool]]:
    setup_globals()
    config = OmegaConf.create({"hydra": {"job_logging": node, "hydra_logging": None}, **rest})
    return [(value, clear) for _, value, clear in made_by_logging(config)]


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"formatters": {"f": {"()": "evil.make"}}}, ("evil.make", True)),
        ({"handlers": {"h": {"class": "${e.name}"}}}, ("evil.main", True)),
        ({"handlers": {"h": {"stream": "ext://evil.main"}}}, ("ext://evil.main", True)),
        ({"handlers": {"h": {"stream": "${e.scheme}evil.main"}}}, ("ext://evil.main", True)),
        ({"handlers": "${e.handlers}"}, ("evil.Far", True)),
        ("${e.node}", ("evil.Farther", True)),
        ({"handlers": {"h": {"stream": "ex${e.unknown}"}}}, ("ex${e.unknown}", False)),
        ({"handlers": {"h": {"class": "${oc.select:e.name}"}}}, ("evil.main", True)),
        ({"handlers": {"h": {"level": "${f:1}"}}}, ("${f:1}", False)),
        ({"a": "${now:ext://evil.main}"}, ("ext://evil.main", True)),
        ({"a": "${oc.env:X}evil.main"}, ("${oc.env:X}evil.main", False)),
    ],
)
def test_what_it_is_asked_to_import_is_found_by_whatever_detour(
    node: Any, found: tuple[str, bool]
) -> None:
    e = {
        "name": "evil.main",
        "scheme": "ext://",
        "handlers": {"h": {"class": "evil.Far"}},
        "node": {"handlers": {"h": {"class": "evil.Farther"}}},
    }
    assert found in asked(node, e=e)


GOOD = """\
# what may run here
allow:
  entrypoints: ["examples.*", "mypkg.train:*", -m json.tool, scripts/*.py]
  programs: [python, /usr/bin/env]
  preload: &modules [torch, numpy]
  targets: *modules
  callbacks: []
  searchpath: ["pkg://mypkg.conf"]
  env: [PYTHONHASHSEED]
  paths: [/scratch/*]
  cluster: ["module load cuda/12.4"]
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def test_a_policy_is_read() -> None:
    assert parse_policy(GOOD, "p.yaml") == Policy(
        entrypoints=("examples.*", "mypkg.train:*", "-m json.tool", "scripts/*.py"),
        programs=("python", "/usr/bin/env"),
        preload=("torch", "numpy"),
        targets=("torch", "numpy"),
        searchpath=("pkg://mypkg.conf",),
        env=("PYTHONHASHSEED",),
        paths=("/scratch/*",),
        cluster=("module load cuda/12.4",),
        file="p.yaml",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allow: {}\nalow: {}", "p.yaml:1: is no policy: object contains unknown field alow"),
        ("allow:\n  entrypoint: [a]", "object contains unknown field entrypoint at $.allow"),
        ("allow:\n  programs: python", "p.yaml:2: is no policy: expected array, got str at"),
        (
            "allow:\n  preload:\n  - torch\n  - 3.1",
            "p.yaml:4: is no policy: expected str",
        ),
        ("allow:\n  targets:", "p.yaml:2: is no policy: expected array, got null at"),
        (
            "allow:\n  paths:\n  - /a\n  - b",
            "p.yaml:4: allow.paths: expected an absolute path",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, expected: str) -> None:
    (problem,) = problems_of(text)
    assert expected in problem


@pytest.mark.parametrize("text", ["", "a", "launch: {}", "allow:", "allow: true"])
def test_a_file_that_allows_nothing_by_mistake(text: str) -> None:
    problem = problems_of(text)[0]
    assert problem.startswith("p.yaml:1: ")
    assert "is no policy: " in problem
