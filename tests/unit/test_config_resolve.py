# ruff: noqa: N802 - the functions of the fakes have NVML's names
from __future__ import annotations

import json.tool as json_tool
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.config.command import FORMS, why_empty
from lllaunch.config.console import CONSOLE_KEYS
from lllaunch.config.nodes import RDZV_KEYS
from lllaunch.config.resolve import resolve
from lllaunch.config.resources import RESOURCE_KEYS
from lllaunch.config.restart import RESTART_KEYS
from lllaunch.config.schema import DEFAULT, KEYS, PRESETS, SYNONYMS, schema_node
from lllaunch.config.tree import show
from lllaunch.config.watchdog import WATCHDOG_KEYS, with_spin
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.spec import ConsolePolicy, Entrypoint, LaunchSpec, RestartPolicy, WatchdogPolicy
from lllaunch.std import Std

HERE = str(Path(__file__).parent)


def spec_of(launch: Any, root: dict[str, Any] | None = None, **more: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": launch, **(root or {})})
    places = {"runtime_cwd": HERE, "output_dir": "/out/2026-01-31/10-20-30"}
    return resolve(cfg, **{**places, **more})


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
        watchdog=PRESETS[DEFAULT],
        samples=5.0,
    )


def test_the_defaults_of_the_schema_hold_whatever_the_config_has() -> None:
    given = {**schema_node(), "entrypoint": "env"}
    assert spec_of(given) == spec_of({"entrypoint": "env"})
    assert spec_of({**given, "nproc": 3}).nproc == 3


def test_null_is_the_default() -> None:
    assert spec_of({**dict.fromkeys(KEYS), "entrypoint": "env"}) == spec_of({"entrypoint": "env"})


def test_everything_at_once() -> None:
    launch = OmegaConf.create(
        """
        entrypoint: -m json.tool
        args: {indent: 2, sort-keys: true, rank: "${worker:rank}"}
        nproc: 4
        role: trainer
        start_method: spawn
        preload: [json, decimal]
        cwd: ..
        env: {A: 1, B: "${worker:local_rank}"}
        env_per_rank: {0: {C: x}, 1-2: {C: y}}
        redirects: err
        tee: {0: out}
        local_ranks_filter: "0,2-3"
        duplicate_stdout_filters: loss, acc
        duplicate_stderr_filters: [Warning]
        log_line_prefix: "[\\\\${rank} ${worker:hostname}] "
        log_dir: logs
        grace_period: 1m30s
        signals: term,SIGUSR1
        watchdog: {preset: default, stall: 10m, timeout: 1h}
        max_restarts: 2
        restart: {on: [hang, oom], delay: 1s}
        virtual_local_rank: true
        run_id: abc
        console: {quiet: true, live: false, color: never, interval: 10m}
        """
    )
    spec = spec_of(launch)
    assert spec.entrypoint == Entrypoint("module", "json.tool", "-m json.tool")
    assert spec.args == ("--indent", "2", "--sort-keys", "--rank", "${worker:rank}")
    assert (spec.nproc, spec.role, spec.start_method) == (4, "trainer", "spawn")
    assert spec.preload == ("json", "decimal")
    assert spec.cwd == str(Path(HERE).parent)
    assert spec.env == {"A": "1", "B": "${worker:local_rank}"}
    assert spec.env_per_rank == {range(1): {"C": "x"}, range(1, 3): {"C": "y"}}
    assert spec.redirects == {0: Std.ALL, 1: Std.ERR, 2: Std.ERR, 3: Std.ERR}
    assert spec.tee == {0: Std.OUT, 1: Std.NONE, 2: Std.NONE, 3: Std.NONE}
    assert spec.local_ranks_filter == (range(1), range(2, 4))
    assert spec.duplicate_stdout_filters == ("loss", "acc")
    assert spec.duplicate_stderr_filters == ("Warning",)
    assert spec.log_line_prefix == "[${worker:rank} ${worker:hostname}] "
    assert spec.log_dir == os.path.join(HERE, "logs")
    assert spec.grace_period == 90
    assert spec.signals == (signal.SIGTERM, signal.SIGUSR1)
    assert spec.watchdog == with_spin(
        WatchdogPolicy(timers=True, timeout=3600, stall=600, warmup=300)
    )
    assert (spec.max_restarts, spec.virtual_local_rank, spec.run_id) == (2, True, "abc")
    assert spec.console == ConsolePolicy(live=False, color="never", quiet=True, interval=600)
    assert spec.restart == RestartPolicy(frozenset({"hang", "oom"}), 1)


def test_values_are_resolved_and_may_come_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "3")
    root = {"params": {"n": "${oc.env:N}", "env": {"A": "${..name}"}, "name": "x"}}
    root["params"]["device"] = "cuda:${worker:local_rank}"
    launch = {"entrypoint": "env", "nproc": "${params.n}", "env": "${params.env}"}
    spec = spec_of({**launch, "args": ["${params.device}"]}, root)
    assert spec.nproc == 3
    assert spec.env == {"A": "x"}
    assert spec.args == ("cuda:${worker:local_rank}",)


def test_the_whole_node_may_be_a_reference() -> None:
    assert spec_of("${presets.one}", {"presets": {"one": {"entrypoint": "env"}}}).nproc == 1


def test_a_function_gets_plain_data() -> None:
    args = {"skipkeys": True, "indent": [1, {"a": None}], "x": 0.5}
    spec = spec_of({"entrypoint": "json:dumps_", "args": args} | {"entrypoint": "os.path:join"})
    assert spec.kwargs == args
    assert type(spec.kwargs["indent"]) is list
    assert spec_of({"entrypoint": "os.path:join", "args": [1, [2]]}).args == (1, [2])


def test_an_empty_list_of_ranks_shows_nobody() -> None:
    assert spec_of({"entrypoint": "env", "local_ranks_filter": []}).local_ranks_filter == ()
    shown = spec_of({"entrypoint": "env", "local_ranks_filter": 0}).local_ranks_filter
    assert shown == (range(1),)


def test_relative_scripts_start_where_the_user_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "work").mkdir()
    spec = spec_of({"entrypoint": "train.py", "cwd": "work"}, runtime_cwd=str(tmp_path))
    assert spec.entrypoint.name == str(tmp_path / "train.py")
    assert spec.cwd == str(tmp_path / "work")


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
    class Nvml:
        NVMLError = OSError

        def nvmlInit(self) -> None: ...
        def nvmlShutdown(self) -> None: ...
        def nvmlDeviceGetCount(self) -> int:
            return 8

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            return index

    launch = {"entrypoint": "env", "nproc": "gpu"}
    assert spec_of(launch, nvml=Nvml(), environ={}).nproc == 8
    environ = {"CUDA_VISIBLE_DEVICES": "1,2,3"}
    assert spec_of(launch, nvml=Nvml(), environ=environ).nproc == 3
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    assert spec_of({**launch, "env": env}, nvml=Nvml(), environ=environ).nproc == 1
    (told,) = complaints(launch, nvml=Nvml(), environ={"CUDA_VISIBLE_DEVICES": ""})
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


# A setting as YAML, and below it what is told; every other setting is right.
MISTAKES = r"""
nproc: atuo
    launch.nproc: expected a number of workers (1, 2, ... or auto, cpu, gpu), got
    'atuo'; did you mean 'auto'? [nproc]
nproc: "???"
    launch.nproc: expected a value, got '???' [missing]
tee: al
    launch.tee: expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out'), got
    'al'; did you mean 'all'? [mask]
tee: 1:all
    launch.tee: expected rank 0 only, as nproc is 1, got '1:all'; no worker has 1 [mask]
redirects: 1:3
    launch.redirects: expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out'),
    got 63; YAML reads 1:3 without quotes as 63: quote it [mask]
role: ""
    launch.role: expected text that is not empty, got '' [text]
role: 3
    launch.role: expected text, got 3; quote it [text]
role: "a\nb"
    launch.role: expected one line of printable characters, got 'a\nb' [text]
role: "${worker:rank}"
    launch.role: '${worker:rank}' asks for a worker's fact where all workers have one value; only
    args, env, env_per_rank, log_line_prefix may have ${worker:...} [worker-variable]
run_id: "a\0"
    launch.run_id: expected text without NUL characters, got 'a\x00' [text]
start_method: fork
    launch.start_method: expected forkserver or spawn, got 'fork'; use 'forkserver': 'fork' is
    for the Python API [choice]
start_method: forksrver
    launch.start_method: expected forkserver or spawn, got 'forksrver'; did you mean
    'forkserver'? [choice]
start_method: 1
    launch.start_method: expected forkserver or spawn, got 1 [choice]
preload: [json, a b]
    launch.preload[1]: expected the name of a module (package.module), got 'a b' [preload]
preload: jsn
    launch.preload: 'jsn' cannot be imported: there is no module 'jsn'; did you mean 'json'?
    [preload]
preload: {a: 1}
    launch.preload: expected a list, got {a: 1} [type]
cwd: nowhere
    launch.cwd: expected a directory that exists, got 'nowhere' [directory]
cwd: test_config_resolve.py
    launch.cwd: expected a directory, got 'test_config_resolve.py' [directory]
log_dir: test_config_resolve.py/x
    launch.log_dir: expected a directory that exists or can be made, got 'test_config_resolve.py/x';
    'HERE/test_config_resolve.py' is not a directory [directory]
local_ranks_filter: [0, 9]
    launch.local_ranks_filter[1]: expected rank 0 only, as nproc is 1, got 9 [ranks]
local_ranks_filter: x
    launch.local_ranks_filter: expected a local rank or a range of them (0, 3, '1-7'), got 'x'
    [ranks]
duplicate_stdout_filters: [1]
    launch.duplicate_stdout_filters[0]: expected text, got 1; quote it [text]
duplicate_stderr_filters: [""]
    launch.duplicate_stderr_filters[0]: expected text that is not empty, got '' [text]
log_line_prefix: \${rnak}
    launch.log_line_prefix: expected ${worker:NAME} with the name of a fact (rank, local_rank,
    hostname, ...), got '${rnak}'; there is no 'rnak'; did you mean 'rank'? [worker-variable]
log_line_prefix: 1
    launch.log_line_prefix: expected text, got 1; quote it [text]
grace_period: "1:30"
    launch.grace_period: expected a duration (90, 90s, 10m, 1h30m, 1d), got '1:30';
    colons could mean hours or minutes; write 1h30m or 1m30s [duration]
grace_period: soon
    launch.grace_period: expected a duration (90, 90s, 10m, 1h30m, 1d), got 'soon' [duration]
grace_period: -1
    launch.grace_period: expected a duration of 0 or more, got -1 [duration]
signals: [SIGKILL]
    launch.signals[0]: expected a signal that the launcher can handle, got 'SIGKILL'; no process can
    handle it [signal]
signals: SIGTREM
    launch.signals: expected the name of a signal (SIGTERM, SIGINT, ...), got
    'SIGTREM'; did you mean 'SIGTERM'? [signal]
signals: [15]
    launch.signals[0]: expected the name of a signal (SIGTERM, SIGINT, ...), got 15 [signal]
signals: CHLD
    launch.signals: expected a signal that the launcher can handle, got 'CHLD'; by it the
    system tells the launcher of its own children [signal]
max_restarts: -1
    launch.max_restarts: expected a whole number, 0 or more, got -1 [number]
max_restarts: 1.5
    launch.max_restarts: expected a whole number, 0 or more, got 1.5 [number]
max_restarts: 1000001
    launch.max_restarts: expected a whole number, 1000000 at most, got 1000001 [number]
virtual_local_rank: "true"
    launch.virtual_local_rank: expected true or false, got 'true'; write it without quotes [choice]
env: {A: "${worker:rnk}"}
    launch.env.A: expected ${worker:NAME} with the name of a fact (rank, local_rank, hostname,
    ...), got '${worker:rnk}'; there is no 'rnk'; did you mean 'rank'? [worker-variable]
env: {A: "${nope}"}
    launch.env.A: '${nope}' cannot be resolved: Interpolation key 'nope' not found [interpolation]
env: {A: "${nope:1}"}
    launch.env.A: '${nope:1}' cannot be resolved: Unsupported interpolation type nope
    [interpolation]
env: {A: "${launch.env.A}"}
    launch.env.A: '${launch.env.A}' cannot be resolved: Recursive interpolation detected
    [interpolation]
env: {A: "???"}
    launch.env.A: expected a value, got '???' [missing]
args: ["${launch}"]
    launch.args[0]: '${launch}' cannot be resolved: Interpolation to parent node detected
    [interpolation]
entrypoint: 3
    launch.entrypoint: expected an entrypoint (package.module:callable, a path ending in .py,
    -m package.module, or a program), got 3; quote it [entrypoint]
entrypoint: test_config_resolv.py
    launch.entrypoint: 'test_config_resolv.py' does not exist in
    'HERE'; did you mean 'test_config_resolve.py'? [entrypoint]
entrypoint: -m jsn.tool
    launch.entrypoint: '-m jsn.tool' cannot be run: there is no module 'jsn'; did you mean
    'json'? [entrypoint]
entrypoint: -m json.tol
    launch.entrypoint: '-m json.tol' cannot be run: package 'json' has no module
    'tol'; did you mean 'tool'? [entrypoint]
entrypoint: json.tool:mian
    launch.entrypoint: 'json.tool:mian' cannot be run: 'JSON_TOOL' defines no
    'mian'; did you mean 'main'? [entrypoint]
entrypoint: python train.py
    launch.entrypoint: expected one file, module, function or program, not a command line, got
    'python train.py'; name the script itself (Python is started for you) and give its arguments
    as 'args' [entrypoint]
"""


def mistakes() -> Iterator[tuple[str, str]]:
    for block in re.findall(r"^\S.*\n(?:    .*\n)+", MISTAKES, re.MULTILINE):
        setting, *told = block.splitlines()
        text = " ".join(line.strip() for line in told)
        text = text.replace("HERE", HERE).replace("JSON_TOOL", str(json_tool.__file__))
        yield setting, text


@pytest.mark.parametrize(("setting", "told"), [*mistakes()])
def test_one_mistake_is_one_line(setting: str, told: str) -> None:
    base = {} if setting.startswith("entrypoint") else {"entrypoint": "env"}
    assert complaints(OmegaConf.merge(base, OmegaConf.create(setting))) == [told]


# For each key, values that can be nothing that it takes.
WRONG_KINDS: dict[str, list[Any]] = {
    "entrypoint": [None, "", 3, [1], {"a": 1}, "train.py:main", "-m"],
    "args": [3, "--lr 1", True],
    "nproc": ["two", 0, 1.5, True, [1], {"a": 1}],
    "nnodes": ["two", 0, -1, 1.5, True, [1], {"a": 1}, "1:2:3", "4:1", ":", "1:", "", 10**7],
    "node_rank": ["x", -1, 1.5, True, [1], {"a": 1}, 1],
    "rdzv": ["c10d", "host0:29500", 3, [1], True],
    "role": ["", 3, [1], {"a": 1}, "a\nb"],
    "start_method": ["fork", 1, [1], {"a": 1}],
    "preload": [{"a": 1}, 3, "a b"],
    "cwd": ["nowhere", 3, [1]],
    "env": [3, "A=1", [1]],
    "env_per_rank": [3, "x", [1]],
    "redirects": ["al", 4, True, [1], 1.5],
    "tee": ["al", 4, True, [1], 1.5, "9:all"],
    "local_ranks_filter": [9, "x", {"a": 1}, True],
    "duplicate_stdout_filters": [3, {"a": 1}],
    "duplicate_stderr_filters": [True, {"a": 1}],
    "log_line_prefix": [3, [1], "${worker:rnk}"],
    "collapse": ["true", 1, [1]],
    "log_dir": [3, [1], f"{__file__}/x"],
    "grace_period": ["soon", "1:30", -1, True, [1], {"a": 1}],
    "signals": ["SIGTREM", 15, "KILL", {"a": 1}],
    "watchdog": ["strickt", 3, True, [1]],
    "max_restarts": [-1, "x", 1.5, True, [1], 10**7],
    "restart": ["all", 3, True, [1]],
    "min_disk": ["much", -1, 0, True, [1]],
    "preflight": [3, True, [], ""],
    "resources": ["gpu", 2, [1]],
    "virtual_local_rank": ["true", 1, [1]],
    "run_id": ["", 3, [1]],
    "console": ["quiet", True, 1, [1]],
    "samples": ["often", "none", 0, 0.5, "1:30", True, [1], {"a": 1}],
    "locked": [3, [1], ""],
}


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_is_told_with_what_was_expected_and_what_came(key: str) -> None:
    for value in WRONG_KINDS[key]:
        (line,) = complaints({"entrypoint": "env", key: value})
        where, _, said = line.partition(": expected ")
        # of a list, the first element may be what is wrong
        assert where in {f"launch.{key}", f"launch.{key}[0]"}, line
        of_element = where.endswith("[0]") and isinstance(value, list)
        shown = show(value[0] if of_element else value)
        assert f", got {shown}" in said, line


@pytest.mark.parametrize("written", [*SYNONYMS, "nproc-per-node", "ENTRYPOINT", "log-dir", "argz"])
def test_an_unknown_key_says_what_was_meant(written: str) -> None:
    (line,) = complaints({"entrypoint": "env", written: 1})
    meant = SYNONYMS.get(written.replace("-", "_")) or {
        "ENTRYPOINT": "entrypoint",
        "log-dir": "log_dir",
        "argz": "args",
    }.get(written)
    assert line == f"launch.{written}: unknown setting; did you mean {meant!r}? [unknown-key]"


def test_other_words_stand_for_settings_that_there_are() -> None:
    below = {f"watchdog.{key}" for key in WATCHDOG_KEYS}
    below |= {f"restart.{key}" for key in RESTART_KEYS}
    below |= {f"resources.{key}" for key in RESOURCE_KEYS}
    below |= {f"rdzv.{key}" for key in RDZV_KEYS}
    below |= {f"console.{key}" for key in CONSOLE_KEYS}
    assert set(SYNONYMS.values()) <= {*KEYS} | below
    assert not set(SYNONYMS) & {*KEYS}


def test_mistakes_are_told_together_in_the_order_of_the_settings() -> None:
    lines = complaints(
        {
            "typo": 1,
            "restart": {"on": "x", "delay": -1},
            "watchdog": {"stall": 0, "memory": 16},
            "max_restarts": -1,
            "tee": {0: "al", "x": "out"},
            "env": {"RANK": 1, "B": "${nope}", "C": True},
            "args": {"a": "${nope}", "b": {"c": 1}},
            "entrypoint": "no-such-program-anywhere",
            "nproc": 0,
        },
        {"params": {"api_key": "sk-1234"}},
    )
    assert [line.partition(": ")[0] for line in lines] == [
        "launch.entrypoint",
        "launch.args.a",
        "launch.args.b",
        "launch.nproc",
        "launch.env.B",
        "launch.env.RANK",
        "launch.env.C",
        "launch.tee.0",
        "launch.tee.x",
        "launch.watchdog.stall",
        "launch.watchdog.memory",
        "launch.max_restarts",
        "launch.restart.on",
        "launch.restart.delay",
        "launch.typo",
        "params.api_key",
    ]


@pytest.mark.parametrize("launch", [[1], 3, "text", True])
def test_a_node_that_is_no_mapping(launch: Any) -> None:
    cfg = OmegaConf.create({"launch": launch})
    with pytest.raises(ConfigError, match=r"launch: expected a mapping of settings"):
        resolve(cfg, runtime_cwd=HERE, output_dir="/out")


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
    assert "there is no config group 'exp' or 'name'; 'exp=resnet' was taken" in line


def test_a_group_that_is_nearly_named_is_meant(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "toy.yaml").touch()
    searched = [str(tmp_path), "/a/conf (not there)"]
    assert why_empty({"exps": "toy"}, "launch", searched).hint == "did you mean +exp=toy?"
    assert "was taken for a plain value" in why_empty({"exps": "toi"}, "launch", searched).hint
    assert "was taken for a plain value" in why_empty({"zzz": "toy"}, "launch", searched).hint


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
        resolve(OmegaConf.create({}), runtime_cwd=HERE, output_dir="/out")


def test_arguments_are_tried_on_a_function(tmp_path: Path) -> None:
    (tmp_path / "fit_module.py").write_text("def train(lr, *, epochs=1): ...\n")
    launch = {"entrypoint": "fit_module:train", "args": {"epoch": 3}}
    assert complaints(launch, runtime_cwd=str(tmp_path)) == [
        (
            "launch.args.epoch: fit_module:train has no such argument; did you mean "
            "'epochs'? [arguments]"
        ),
        "launch.args: fit_module:train also requires 'lr' [arguments]",
    ]
    broken = {**launch, "args": "${nope}"}
    assert len(complaints(broken, runtime_cwd=str(tmp_path))) == 1


@pytest.mark.untraced
def test_a_thousand_workers_and_ten_thousand_keys() -> None:
    many = {f"K{number}": number for number in range(10_000)}
    assert len(spec_of({"entrypoint": "env", "env": many, "nproc": 1000}, many).env) == 10_000
    lines = complaints({"entrypoint": "env", **many})
    assert len(lines) == 21
    assert lines[-1] == "launch: 9980 more unknown settings [unknown-key]"
    lines = complaints({"entrypoint": "env", "env": dict.fromkeys(many, 1.5)})
    assert len(lines) == 51
    assert lines[-1] == "and: 9950 more problems [more]"


@pytest.mark.untraced
def test_references_that_expand_without_end_are_stopped() -> None:
    root: dict[str, Any] = {"l0": [1, 1]}
    for level in range(1, 9):
        root[f"l{level}"] = [f"${{l{level - 1}}}"] * 10
    assert complaints({"entrypoint": "env", "args": ["${l8}"]}, root) == [
        "launch: it expands to more than 20000 values [too-large]"
    ]


def test_references_between_containers_that_never_end() -> None:
    root = {"a": {"x": "${b}"}, "b": {"y": "${a}"}}
    lines = complaints({"entrypoint": "os.path:join", "args": ["${a}"]}, root)
    assert len(lines) == 1
    assert lines[0].startswith("launch.args[0].x")


def test_deep_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    (line,) = complaints({"entrypoint": "os.path:join", "args": deep})
    assert line.endswith("is nested too deeply [too-large]")


def test_a_config_too_deep_for_python_is_refused() -> None:
    limit = sys.getrecursionlimit()
    deep: Any = 1
    for _ in range(1000):
        deep = {"a": deep}
    sys.setrecursionlimit(50_000)
    try:
        cfg = OmegaConf.create({"launch": {"entrypoint": "env"}, "deep": deep})
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(ConfigError, match="the config is nested too deeply to be read"):
        resolve(cfg, runtime_cwd=HERE, output_dir="/out")


def test_a_chain_of_references_too_long_for_python_is_refused() -> None:
    chain = {f"c{link}": f"${{c{link + 1}}}" for link in range(300)}
    (line,) = complaints({"entrypoint": "env", "role": "${c0}"}, {**chain, "c300": "x"})
    assert line.startswith("launch.role: '${c0}' cannot be resolved: ")


HOSTILE: list[Any] = [
    *("", "\0", "???", "${nope}", "${worker:rank}", "a" * 10**5, "\ud800", "1:3", "~"),
    *(-1, 63, 10**30, 1.5, float("nan"), True),
    *([], [[]], [None], {}, {"a": {"b": []}}, {0: None}, {1.5: 1}, {"a" * 10**4: 1}),
]


def told_about(launch: dict[str, Any]) -> tuple[Diagnostic, ...]:
    try:
        spec_of(launch)
    except ConfigError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_no_value_of_any_key_ends_in_another_error(key: str, value: Any) -> None:
    for problem in told_about({"entrypoint": "env", key: value}):
        assert problem.key.startswith("launch")
        assert len(str(problem)) < 1000


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_no_value_below_a_key_ends_in_another_error(value: Any) -> None:
    for key, names in (("watchdog", WATCHDOG_KEYS), ("restart", (*RESTART_KEYS, True))):
        for problem in told_about({"entrypoint": "env", key: dict.fromkeys(names, value)}):
            assert problem.key.startswith(f"launch.{key}")
            assert len(str(problem)) < 1000


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would fail
    spec = spec_of({"entrypoint": "torch.nn:Linear", "nproc": "auto", "preload": ["torch"]})
    assert spec.preload == ("torch",)
