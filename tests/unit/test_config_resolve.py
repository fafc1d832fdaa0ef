from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.nvml import FakeNvml

from lllaunch.config.command import FORMS
from lllaunch.config.kinds import PRESETS
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import DEFAULT_PRESET, SYNONYMS, schema_node
from lllaunch.errors import ConfigError
from lllaunch.spec import KEYS, Entrypoint, LaunchSpec, Std
from tests.unit.launch_nodes import mistakes

HERE = str(Path(__file__).parent)


def spec_of(launch: Any, root: dict[str, Any] | None = None, **more: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": launch, **(root or {})})
    places = {"runtime_cwd": HERE, "output_dir": "/out/2026-01-31/10-20-30"}
    return resolve(cfg, HostContext(**{**places, **more}))


def complaints(launch: Any, root: dict[str, Any] | None = None, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(launch, root, **more)
    return str(caught.value).splitlines()


def test_defaults() -> None:
    spec = spec_of({"entrypoint": "env"})
    assert spec == LaunchSpec(
        entrypoint=Entrypoint("program", "env", "env"),
        nproc=1,
        log_dir="/out/2026-01-31/10-20-30",
        cwd=HERE,
        redirects={0: Std.ALL},
        tee={0: Std.ALL},
        run_id="2026-01-31-10-20-30",
        output_dir="/out/2026-01-31/10-20-30",
        runtime_cwd=HERE,
        watchdog=PRESETS[DEFAULT_PRESET],
        samples=5.0,
    )


def test_null_and_what_the_schema_says_are_the_defaults() -> None:
    given = {**schema_node(), "entrypoint": "env"}
    assert spec_of(given) == spec_of({"entrypoint": "env"})
    assert spec_of({**given, "nproc": 3}).nproc == 3
    assert spec_of({**dict.fromkeys(KEYS), "entrypoint": "env"}) == spec_of({"entrypoint": "env"})


def test_values_are_resolved_and_may_come_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "3")
    root = {"params": {"n": "${oc.env:N}", "env": {"A": "${..name}"}, "name": "x"}}
    root["params"]["device"] = "cuda:${worker:local_rank}"
    launch = {"entrypoint": "env", "nproc": "${params.n}", "env": "${params.env}"}
    spec = spec_of({**launch, "args": ["${params.device}"]}, root)
    assert spec.nproc == 3
    assert spec.env == {"A": "x"}
    assert spec.args == ("cuda:${worker:local_rank}",)


def test_modules_are_looked_for_where_the_workers_import(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/only_here_mod.py").write_text("def f(x): ...\n")
    launch = {"entrypoint": "only_here_mod:f", "args": [1]}
    assert spec_of(launch, runtime_cwd=str(tmp_path / "lib"))
    assert "there is no module 'only_here_mod'" in complaints(launch)[0]
    env = {"PYTHONPATH": str(tmp_path / "lib")}
    assert spec_of({**launch, "env": env, "preload": "only_here_mod"})


def test_programs_are_looked_for_on_the_path_of_each_worker(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    launch = {"entrypoint": "only-here", "nproc": 2}
    path = {"PATH": str(tmp_path)}
    assert spec_of({**launch, "env": path})
    assert spec_of({**launch, "env_per_rank": {"0-1": path}})
    told = ["launch.entrypoint: 'only-here' is not a program on PATH [entrypoint]"]
    assert complaints({**launch, "env_per_rank": {0: path}})[0].startswith(told[0])
    assert spec_of({**launch, "env": {"PATH": "/${worker:rank}"}})


def test_gpus_are_counted_as_the_workers_would_see_them() -> None:
    nvml = FakeNvml(*[None] * 8)
    launch = {"entrypoint": "env", "nproc": "gpu"}
    assert spec_of(launch, nvml=nvml, environ={}).nproc == 8
    environ = {"CUDA_VISIBLE_DEVICES": "1,2,3"}
    assert spec_of(launch, nvml=nvml, environ=environ).nproc == 3
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    assert spec_of({**launch, "env": env}, nvml=nvml, environ=environ).nproc == 1
    (told,) = complaints(launch, nvml=nvml, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert told.startswith("launch.nproc: 'gpu' found no visible GPU; see CUDA_VISIBLE_DEVICES")


def test_a_users_own_app_has_no_entrypoint() -> None:
    spec = spec_of({"nproc": 2}, entrypoint_required=False)
    assert spec.entrypoint.text == ""
    assert complaints({"entrypoint": "env", "args": [1]}, entrypoint_required=False) == [
        (
            "launch.entrypoint: 'env' is not used here: what the workers run is the decorated "
            "function; leave it out [own-app]"
        ),
        (
            "launch.args: [1] is not used here: what the workers run is the decorated function; "
            "leave it out [own-app]"
        ),
    ]


MISTAKES = r"""
nproc: "???"
    launch.nproc: expected a value, got '???' [missing]
role: 3
    launch.role: expected text, got 3; quote it [text]
role: "${worker:rank}"
    launch.role: '${worker:rank}' asks for a worker's fact where all workers have one value; only
    args, env, env_per_rank, log_line_prefix may have ${worker:...} [worker-variable]
start_method: fork
    launch.start_method: expected forkserver or spawn, got 'fork'; did you mean 'forkserver'?
    [choice]
preload: jsn
    launch.preload: 'jsn' cannot be imported: there is no module 'jsn'; did you mean 'json'?
    [preload]
cwd: nowhere
    launch.cwd: expected a directory that exists, got 'nowhere' [directory]
log_line_prefix: \${rnak}
    launch.log_line_prefix: expected ${worker:NAME} with the name of a fact (rank, local_rank,
    hostname, ...), got '${rnak}'; there is no 'rnak'; did you mean 'rank'? [worker-variable]
signals: [SIGKILL]
    launch.signals[0]: expected a signal that the launcher can handle, got 'SIGKILL'; no process can
    handle it [signal]
max_restarts: -1
    launch.max_restarts: expected a whole number, 0 or more, got -1 [number]
samples: 0.5
    launch.samples: expected a duration of at least 1s, or false, got 0.5
    [duration]
locked: 3
    launch.locked: expected true, false or the name of a lock, got 3 [choice]
virtual_local_rank: "true"
    launch.virtual_local_rank: expected true or false, got 'true'; write it without quotes [choice]
args: ["${launch}"]
    launch.args[0]: '${launch}' cannot be resolved: Interpolation to parent node detected
    [interpolation]
entrypoint: -m json.tol
    launch.entrypoint: '-m json.tol' cannot be run: package 'json' has no module
    'tol'; did you mean 'tool'? [entrypoint]
"""


@pytest.mark.parametrize(("setting", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(setting: Any, told: str) -> None:
    assert complaints({"entrypoint": "env", **setting}) == [told.replace("HERE", HERE)]


@pytest.mark.parametrize("written", [*SYNONYMS, "nproc-per-node", "ENTRYPOINT", "log-dir", "argz"])
def test_an_unknown_key_says_what_was_meant(written: str) -> None:
    (line,) = complaints({"entrypoint": "env", written: 1})
    meant = SYNONYMS.get(written.replace("-", "_")) or {
        "ENTRYPOINT": "entrypoint",
        "log-dir": "log_dir",
        "argz": "args",
    }.get(written)
    assert line == f"launch.{written}: unknown setting; did you mean {meant!r}? [unknown-key]"


def test_mistakes_are_told_together_in_the_order_of_the_settings() -> None:
    lines = complaints(
        {
            "typo": 1,
            "restart": {"on": "x", "delay": -1},
            "watchdog": {"stall": 0, "memory": 16},
            "tee": {0: "al", "x": "out"},
            "env": {"RANK": 1, "B": "${nope}"},
            "entrypoint": "no-such-program-anywhere",
            "rdzv": {"backend": "etcd"},
        },
        {"params": {"api_key": "sk-" + "a1" * 10}},
    )
    assert [line.partition(": ")[0] for line in lines] == [
        "launch.entrypoint",
        "launch.rdzv.backend",
        *("launch.env.B", "launch.env.RANK"),
        *("launch.tee.0", "launch.tee.x"),
        *("launch.watchdog.stall", "launch.watchdog.memory"),
        *("launch.restart.on", "launch.restart.delay"),
        "launch.typo",
        "params.api_key",
    ]


ENTRYPOINT = f"expected an entrypoint ({FORMS})"


def test_an_empty_entrypoint_says_which_group_was_not_found() -> None:
    assert complaints({}, {"exp": "resnet"}, searched=["/a/conf", "pkg://lllaunch.conf"]) == [
        (
            f"launch.entrypoint: {ENTRYPOINT}, got null; there is no "
            "config group 'exp' in /a/conf, "
            "pkg://lllaunch.conf; 'exp=resnet' was taken for a plain value [entrypoint]"
        )
    ]
    (line,) = complaints({"entrypoint": ""}, {"name": "x", "exp": "resnet", "lr": 0.1})
    assert "there is no config group 'exp'; 'exp=resnet' was taken" in line


def test_an_empty_entrypoint_says_that_a_package_line_is_missing() -> None:
    assert complaints({}, {"exp": {"launch": {"entrypoint": "env"}}}) == [
        (
            f"launch.entrypoint: {ENTRYPOINT}, got null; there is exp.launch; put the line "
            "'# @package _global_' at the top of that config file [entrypoint]"
        )
    ]


def test_an_empty_entrypoint_alone() -> None:
    (line,) = complaints({}, {"api_key": "${oc.env:HOME}", "text": "two words", "n": 1})
    assert line == f"launch.entrypoint: {ENTRYPOINT}, got null [entrypoint]"
    with pytest.raises(ConfigError, match=r"launch\.entrypoint: expected an entrypoint"):
        resolve(OmegaConf.create({}), HostContext(runtime_cwd=HERE, output_dir="/out"))


def test_arguments_are_tried_on_a_function(tmp_path: Path) -> None:
    (tmp_path / "fit_module.py").write_text("def train(lr, *, epochs=1): ...\n")
    launch = {"entrypoint": "fit_module:train", "args": {"epoch": 3}}
    assert complaints(launch, runtime_cwd=str(tmp_path)) == [
        (
            "launch.args.epoch: fit_module:train has no such argument; did you mean "
            "'epochs'? [arguments]"
        ),
        "launch.args: fit_module:train: missing a required argument: 'lr' [arguments]",
    ]
    broken = {**launch, "args": "${nope}"}
    assert len(complaints(broken, runtime_cwd=str(tmp_path))) == 1


@pytest.mark.slow
def test_a_thousand_workers_and_ten_thousand_keys() -> None:
    many = {f"K{number}": number for number in range(10_000)}
    assert len(spec_of({"entrypoint": "env", "env": many, "nproc": 1000}, many).env) == 10_000
    lines = complaints({"entrypoint": "env", **many})
    assert len(lines) == 51
    assert lines[-1] == "and: 9950 more problems [more]"
    lines = complaints({"entrypoint": "env", "env": dict.fromkeys(many, 1.5)})
    assert len(lines) == 51
    assert lines[-1] == "and: 9950 more problems [more]"


def doubling(depth: int, last: str = "x") -> dict[str, Any]:
    first = {"a0": last}
    return first | {f"a{i}": f"${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, depth)}


def test_references_that_double_are_stopped() -> None:
    launch = {"entrypoint": "os.path:join", "args": ["${a9}"]}
    assert spec_of(launch, doubling(10)).args == ("x" * 2**9,)
    root = doubling(40) | {"which": {"last": "${a39}"}, "name": "last"}
    for value in ("see ${a39}", "${oc.select:a39}", "${which.${name}}"):
        assert complaints(launch | {"args": ["fine", {"x": value}]}, root) == [
            "launch.args[1].x: it expands to more than 1000 references [too-large]"
        ]


HOSTILE: list[Any] = [
    *("", "\0", "???", "${nope}", "${worker:rank}", "a" * 10**5, "\ud800", "1:3", "~"),
    *(-1, 63, 10**30, 1.5, float("nan"), True),
    *([], [[]], [None], {}, {"a": {"b": []}}, {0: None}, {1.5: 1}, {"a" * 10**4: 1}),
]


@pytest.mark.parametrize("key", KEYS)
def test_no_value_of_any_key_ends_in_another_error(key: str) -> None:
    for value in HOSTILE:
        try:
            spec_of({"entrypoint": "env", key: value})
        except ConfigError as error:
            problems = error.problems
        else:
            continue
        for problem in problems:
            assert problem.key.startswith("launch")
            assert len(str(problem)) < 1000


def test_a_resolver_of_the_apps_own_is_not_overridden() -> None:
    OmegaConf.register_new_resolver("worker", lambda name: f"my {name}", replace=True)
    try:
        (complaint,) = complaints({"entrypoint": "env", "args": ["${worker:rank}"]})
        assert complaint.startswith("${worker:...}: is a resolver of the app's own; ")
        assert OmegaConf.create({"x": "${worker:bee}"}).x == "my bee"
    finally:
        OmegaConf.clear_resolver("worker")
    assert spec_of({"entrypoint": "env", "args": ["${worker:rank}"]}).entrypoint.text == "env"
