from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.config.plan import default_run_id, plan_hash, plan_text
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import KEYS, UNPLANNED
from lllaunch.config.tree import escape
from lllaunch.policies import RESTART_CAUSES
from lllaunch.spec import Entrypoint, LaunchSpec


def spec_of(launch: Any, cwd: str = "/", out: str = "/out/day/time", **root: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": launch, **root})
    return resolve(cfg, runtime_cwd=cwd, output_dir=out)


RICH = {
    "entrypoint": "env",
    "args": {"a": "x: y", "b": "1e3", "c": "${worker:rank}", "d": "\\${HOME} \\\\${worker:rank}"},
    "nproc": 4,
    "env": {"B": "yes", "A": 1, "C": "1:3", "D": "2020-01-01", "E": "0o7", "F": "é\n\t"},
    "env_per_rank": {"1-2": {"X": "a"}, 3: {"X": "b"}},
    "redirects": {0: "out", "2-3": "err"},
    "tee": "0:all",
    "local_ranks_filter": [0, "2-3"],
    "grace_period": 5400,
    "signals": "TERM",
    "log_line_prefix": "[\\${rank}]",
    "duplicate_stdout_filters": "a,b",
    "preload": ["json"],
    "watchdog": {"preset": "strict", "timeout": 3600, "memory": "1.5GiB", "heartbeat": None},
    "restart": {"on": "oom,hang", "delay": 90},
}


def test_a_plan_is_the_decided_node_in_the_order_of_the_schema() -> None:
    plan = yaml.safe_load(plan_text(spec_of(RICH)))["launch"]
    assert list(plan) == [key for key in KEYS if key not in UNPLANNED]
    assert plan["nproc"] == 4
    assert plan["redirects"] == "0:all 2-3:err"
    assert plan["tee"] == "0:all"
    assert plan["grace_period"] == "1h30m"
    assert plan["signals"] == ["SIGTERM"]
    assert plan["log_line_prefix"] == "[${worker:rank}]"
    assert plan["env_per_rank"] == {"1-2": {"X": "a"}, 3: {"X": "b"}}
    assert plan["watchdog"] == {
        "timers": True,
        "timeout": "1h",
        "run_timeout": None,
        "stall": "5m",
        "stall_scope": "rank",
        "warmup": "5m",
        "heartbeat": None,
        "memory": "1536MiB",
    }
    assert plan["restart"] == {"on": ["oom", "hang"], "delay": "1m30s", "max_delay": "5m"}
    assert list(plan["env"]) == ["A", "B", "C", "D", "E", "F"]


def test_a_plan_is_a_config_of_the_same_run() -> None:
    spec = spec_of(RICH)
    again = spec_of(OmegaConf.create(plan_text(spec)).launch)
    assert again == spec
    assert plan_text(again) == plan_text(spec)


plain_text = st.text(alphabet="ab\\${}:'\" \n1.e-~#é", max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_"), inner, max_size=3),
    max_leaves=6,
)


def as_written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_written(item) for item in value]
    return escape(value) if isinstance(value, str) else value


@given(st.lists(values, max_size=3))
def test_any_arguments_come_back_from_the_plan(args: list[Any]) -> None:
    launch = {"entrypoint": "os.path:join", "args": as_written(args)}
    spec = spec_of(launch)
    assert list(spec.args) == args
    again = spec_of(OmegaConf.create(plan_text(spec)).launch)
    assert again.args == spec.args


limits = st.none() | st.just(False) | st.floats(1, 1e8) | st.integers(1, 10**8)
watchdogs = st.sampled_from(["none", "default", "strict", None, False]) | st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(["none", "default", "strict", None]),
        "timers": st.booleans(),
        **dict.fromkeys(("timeout", "run_timeout", "stall", "heartbeat"), limits),
        "stall_scope": st.sampled_from(["group", "rank"]),
        "warmup": st.floats(1e-9, 1e8) | st.integers(0, 10**8),
        "memory": st.none() | st.just(False) | st.integers(1024**2, 2**63 - 1),
    },
)
restarts = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "on": st.sampled_from(["all", "none"]) | st.lists(st.sampled_from(RESTART_CAUSES)),
        "delay": st.just(0) | st.floats(1e-9, 300),
        "max_delay": st.floats(300, 1e8),
    },
)


@given(watchdogs, restarts)
def test_any_watchdog_and_restarts_come_back_from_the_plan(watchdog: Any, restart: Any) -> None:
    spec = spec_of({"entrypoint": "env", "watchdog": watchdog, "restart": restart})
    text = plan_text(spec)
    again = spec_of(OmegaConf.create(text).launch)
    assert again == spec
    assert plan_text(again) == text


@given(plain_text)
def test_any_text_survives_being_written(text: str) -> None:
    assert OmegaConf.create({"a": escape(text)}).a == text


def test_the_same_plan_has_the_same_bytes_and_hash() -> None:
    turned = {**RICH, "env": dict(reversed(list(RICH["env"].items())))}  # type: ignore[attr-defined]
    assert plan_text(spec_of(turned)) == plan_text(spec_of(RICH))
    assert plan_hash(spec_of(turned)) == plan_hash(spec_of(RICH))
    assert len(plan_hash(spec_of(RICH))) == 64


def test_keywords_have_no_order_but_options_have() -> None:
    def hash_of(entrypoint: str, args: dict[str, Any]) -> str:
        return plan_hash(spec_of({"entrypoint": entrypoint, "args": args}))

    ab, ba = {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}
    assert hash_of("os.path:join", ab) == hash_of("os.path:join", ba)
    assert hash_of("env", {"a": 1, "b": 2}) != hash_of("env", {"b": 2, "a": 1})


@pytest.mark.parametrize(
    "change",
    [
        *({"nproc": 3}, {"args": [2]}, {"tee": "all"}, {"env": {"A": "2"}}, {"run_id": "x"}),
        *({"watchdog": "default"}, {"watchdog": {"memory": "1GiB"}}, {"restart": {"on": "oom"}}),
    ],
)
def test_the_hash_tells_plans_apart(change: dict[str, Any]) -> None:
    launch = {"entrypoint": "env", "nproc": 2, "args": [1], "env": {"A": "1"}}
    assert plan_hash(spec_of(launch)) != plan_hash(spec_of({**launch, **change}))


def test_the_hash_is_the_same_in_another_place(tmp_path: Any) -> None:
    hashes = set()
    for name in ("one", "two"):
        cwd = tmp_path / name
        (cwd / "sub").mkdir(parents=True)
        out = f"{cwd}/outputs/{name}"
        launch = {"entrypoint": "env", "args": [f"--to={out}/x", f"{cwd}/data"], "cwd": "sub"}
        spec = spec_of(launch, cwd=str(cwd), out=out)
        assert str(cwd) in plan_text(spec)
        hashes.add(plan_hash(spec))
    assert len(hashes) == 1


def test_a_directory_whose_name_only_begins_alike_counts() -> None:
    one = spec_of({"entrypoint": "env", "args": ["/out/day/time"]})
    two = spec_of({"entrypoint": "env", "args": ["/out/day/time2"]})
    assert plan_hash(one) != plan_hash(two)


def test_the_hash_does_not_depend_on_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = {"entrypoint": "env", "env": {"HF_TOKEN": "${oc.env:HF_TOKEN}"}}
    texts, hashes = set(), set()
    for value in ("one", "two"):
        monkeypatch.setenv("HF_TOKEN", value)
        spec = spec_of({**launch, "args": {"t": "${oc.env:HF_TOKEN}"}})
        assert spec.env == {"HF_TOKEN": value}
        assert spec.args == ("--t", value)
        assert spec.secrets == {"HF_TOKEN": "${oc.env:HF_TOKEN}"}
        texts.add(plan_text(spec))
        hashes.add(plan_hash(spec))
    assert len(texts) == len(hashes) == 1
    assert "one" not in texts.pop()


def test_the_plan_of_an_app_names_its_function() -> None:
    cfg = OmegaConf.create({"launch": {}})
    spec = resolve(cfg, runtime_cwd="/", output_dir="/out", entrypoint_required=False)
    assert yaml.safe_load(plan_text(spec))["launch"]["entrypoint"] is None
    function = Entrypoint("function", "train", "train:main", "main")
    named = dataclasses.replace(spec, entrypoint=function)
    assert yaml.safe_load(plan_text(named))["launch"]["entrypoint"] == "train:main"
    assert plan_hash(named) != plan_hash(spec)


def test_the_name_of_a_run_comes_from_its_directory() -> None:
    assert default_run_id("/a/outputs/2026-01-31/10-20-30") == "2026-01-31-10-20-30"
    assert default_run_id("/a/multi run/7/") == "multi_run-7"
    assert default_run_id("/") == "run"
