from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from omegaconf import OmegaConf

from lllaunch.config.nodes import HostContext
from lllaunch.config.plan import (
    SOURCES,
    default_run_id,
    plan_config,
    plan_hash,
    portable_plan,
)
from lllaunch.config.resolve import resolve
from lllaunch.config.tree import escape
from lllaunch.errors import ConfigError
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import Entrypoint, LaunchSpec
from tests.unit import launch_nodes
from tests.unit.launch_nodes import plan_text


def spec_of(launch: Any, cwd: str = "/", out: str = "/out/day/time", **root: Any) -> LaunchSpec:
    return launch_nodes.spec_of(launch, root, runtime_cwd=cwd, output_dir=out)


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
    "restart": {
        "on": "oom,hang",
        "delay": 90,
        "window": "360m",
        "reset_on": "progress",
        "max_without_progress": 3,
        "checkpoint": "ckpt",
        "gpu_wait": 0,
    },
    "min_disk": "5120MiB",
    "preflight": "env 'A B'",
    "role": "trainer",
    "start_method": "spawn",
    "cwd": "tmp",
    "log_dir": "tmp/logs",
    "max_restarts": 2,
    "virtual_local_rank": True,
    "run_id": "abc",
    "collapse": False,
    "samples": "1m",
}


def test_a_plan_is_a_config_of_the_same_run() -> None:
    spec = spec_of(RICH)
    again = spec_of(OmegaConf.create(plan_text(spec)).launch)
    # a plan has arguments as workers get them, however they were written
    assert again == structs.replace(spec, arg_keys=again.arg_keys)
    assert plan_text(again) == plan_text(spec)


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


def test_the_hash_tells_plans_apart() -> None:
    launch = {"entrypoint": "env", "nproc": 2, "args": [1], "env": {"A": "1"}}
    changes: list[dict[str, Any]] = [
        *({}, {"nproc": 3}, {"args": [2]}, {"tee": "all"}, {"env": {"A": "2"}}, {"run_id": "x"}),
        *({"watchdog": "default"}, {"watchdog": {"memory": "1GiB"}}, {"restart": {"on": "oom"}}),
        *({"preflight": "env"}, {"preflight": "env -0"}),
    ]
    assert len({plan_hash(spec_of({**launch, **each})) for each in changes}) == len(changes)


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


def test_only_whole_paths_are_named_in_a_plan() -> None:
    texts = ["https://host/app", "/data/app/x", "~/app", "${oc.env:NOT_SET,/other}/app"]
    places = ["/app", "/app/x", "a=/app:/app", "file:///app/x"]
    spec = spec_of({"entrypoint": "env", "args": [*texts, *places]}, cwd="/app")
    found = portable_plan(spec)["launch"]["args"]
    assert found[: len(texts)] == texts
    assert found[len(texts) :] == ["<cwd>", "<cwd>/x", "a=<cwd>:<cwd>", "file://<cwd>/x"]


def test_a_number_that_the_machine_decides_stays_a_word() -> None:
    launch = {
        "nproc": "gpu",
        "tee": {0: "all", "1-3": "out", 4: "out"},
        "redirects": {"2-3": 3},
        "local_ranks_filter": ["2-3", 0, 1],
    }
    specs = [
        launch_nodes.spec_of(launch, environ={"LLLAUNCH_PRETEND_GPUS": names, "PATH": "/usr/bin"})
        for names in ("a,b,c,d,e", "a,b,c,d,e,f,g,h")
    ]
    nowhere = launch_nodes.spec_of(launch, environ={}, here=False)
    assert [spec.nproc for spec in (*specs, nowhere)] == [5, 8, 1]
    assert len(specs[1].tee) == 8
    assert len({plan_text(spec) for spec in (*specs, nowhere)}) == 1
    assert len({plan_hash(spec) for spec in (*specs, nowhere)}) == 1
    plan = yaml.safe_load(plan_text(nowhere))["launch"]
    assert plan["nproc"] == "gpu"
    assert plan["tee"] == "0:all 1-4:out"
    assert plan["redirects"] == "2-3:all"
    assert plan["local_ranks_filter"] == ["0-3"]
    assert plan_text(launch_nodes.read_back(plan_text(nowhere), here=False)) == plan_text(nowhere)


@contextlib.contextmanager
def running_in(cwd: str, output_dir: str) -> Iterator[None]:
    """Have ``${hydra:runtime.cwd}`` and ``${hydra:runtime.output_dir}``."""
    there = {"runtime.cwd": cwd, "runtime.output_dir": output_dir}
    OmegaConf.clear_resolver("hydra")
    OmegaConf.register_new_resolver("hydra", there.__getitem__)
    try:
        yield
    finally:
        OmegaConf.clear_resolver("hydra")


def test_a_plan_names_its_places_so_that_it_is_a_config_anywhere(tmp_path: Any) -> None:
    place = str(tmp_path)
    args = ["/home/u/data", "/home/u/out/1/x", "/home/u2", "\\\\/home/u", "\\${a}:/home/u"]
    spec = spec_of({"entrypoint": "env", "args": args}, cwd="/home/u", out="/home/u/out/1")
    launch = portable_plan(spec, SOURCES)["launch"]
    assert launch["args"][:3] == [
        "${hydra:runtime.cwd}/data",
        "${hydra:runtime.output_dir}/x",
        "/home/u2",
    ]
    assert launch["log_dir"] == "${hydra:runtime.output_dir}"
    assert launch["cwd"] == "${hydra:runtime.cwd}"
    assert "run_id" not in launch
    with running_in(place, f"{place}/9"):
        again = spec_of(OmegaConf.create(plan_config(spec)).launch, place, f"{place}/9")
    assert plan_config(again) == plan_config(spec)
    assert plan_hash(again) == plan_hash(spec)
    assert again.args[:3] == (f"{place}/data", f"{place}/9/x", "/home/u2")
    assert again.args[3:] == tuple(text.replace("/home/u", place) for text in spec.args[3:])


# what YAML, OmegaConf or the plan itself could take for something else; PyYAML writes U+0085 as it
# is, and reads a blank
SPECIAL = [
    *("", " ", "~", "null", "true", "on", "1", "1.5", "1e3", "0x1f", "1_000", "12:30", "-", ".inf"),
    *("${a}", "\\${a}", "\\\\${a}", "${", "$", "${oc.env:HOME}", "${hydra:runtime.cwd}", "a: b"),
    *("\\", "'", '"', "# no comment", "a\nb", "\n", "\t", "\r\n", "\u2028", "\ufeff", "é"),
    "🐘",
    *("${worker:rank}", "\\${worker:rank}", "<cwd>", "<output_dir>", "{a}", "[1", "&a", "*a", "!x"),
    *("/home/u", "/home/u/x", "\\/home/u", "a/home/u\\", "$/home/u", "/home/ux", "/home/u/out/a b"),
    *("/home/u${oc.env:HOME}", "\\\\/home/u/out"),
]
texts = (
    st.sampled_from(SPECIAL)
    | st.text("ab1.${}:\\'\" \n~#-é@", max_size=8)
    | st.lists(st.sampled_from(SPECIAL), max_size=3).map("".join)
).filter(
    # beside quotes it cannot be told from what a resolver reads, so its text is withheld
    lambda text: "oc.env" not in text or not re.search(r"""['"]|\\\}""", text)
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab_", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
variables = st.dictionaries(
    st.text("ABC_.é", min_size=1, max_size=3).filter(lambda name: not is_secret_name(name)),
    texts | st.integers(),
    max_size=3,
)


def as_written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_written(item) for item in value]
    return escape(value) if isinstance(value, str) else value


@given(
    st.tuples(st.just("env"), st.lists(numbers | texts, max_size=3))
    | st.tuples(
        st.just("os.path:join"),
        st.lists(values, max_size=3)
        | st.dictionaries(st.text("abé_", min_size=1, max_size=3), values, max_size=3),
    ),
    variables,
)
def test_any_arguments_and_variables_come_back_from_the_plan(
    call: tuple[str, Any], env: dict[str, Any]
) -> None:
    launch = {"entrypoint": call[0], "args": as_written(call[1]), "env": as_written(env)}
    places = ("/home/u", "/home/u/out")
    spec = spec_of(launch, *places)
    assert spec.env == {name: str(value) for name, value in env.items()}
    with running_in(*places):
        again = spec_of(OmegaConf.create(plan_config(spec)).launch, *places)
    assert (again.args, again.kwargs, again.env) == (spec.args, spec.kwargs, spec.env)
    assert portable_plan(again) == portable_plan(spec)
    assert plan_config(again) == plan_config(spec)
    assert plan_hash(again) == plan_hash(spec)


def test_to_be_locked_is_no_part_of_a_plan() -> None:
    plain = spec_of({"entrypoint": "env"})
    for locked in (True, "mine"):
        spec = spec_of({"entrypoint": "env", "locked": locked})
        assert spec.locked == locked
        assert plan_text(spec) == plan_text(plain)
    with pytest.raises(ConfigError, match="expected true, false or the name of a lock"):
        spec_of({"entrypoint": "env", "locked": 1})


def test_the_hash_does_not_depend_on_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = {"entrypoint": "env", "env": {"HF_TOKEN": "${oc.env:HF_TOKEN}"}}
    texts, hashes = set(), set()
    for value in ("one", "two"):
        monkeypatch.setenv("HF_TOKEN", value)
        spec = spec_of({**launch, "args": {"t": "${oc.env:HF_TOKEN}"}})
        assert spec.env == {"HF_TOKEN": value}
        assert spec.args == ("--t", value)
        assert {*spec.sources.values()} == {"${oc.env:HF_TOKEN}"}
        assert sorted(spec.withheld) == [
            (("args", "t"), value, "${oc.env:HF_TOKEN}"),
            (("env", "HF_TOKEN"), value, "${oc.env:HF_TOKEN}"),
        ]
        texts.add(plan_text(spec))
        hashes.add(plan_hash(spec))
    assert len(texts) == len(hashes) == 1
    assert "one" not in texts.pop()


def test_the_plan_of_an_app_names_its_function() -> None:
    cfg = OmegaConf.create({"launch": {}})
    spec = resolve(cfg, HostContext(runtime_cwd="/", output_dir="/out", entrypoint_required=False))
    assert yaml.safe_load(plan_text(spec))["launch"]["entrypoint"] is None
    function = Entrypoint("function", "train", "train:main", "main")
    named = structs.replace(spec, entrypoint=function)
    assert yaml.safe_load(plan_text(named))["launch"]["entrypoint"] == "train:main"
    assert plan_hash(named) != plan_hash(spec)


def test_the_name_of_a_run_comes_from_its_directory() -> None:
    assert default_run_id("/a/outputs/2026-01-31/10-20-30") == "2026-01-31-10-20-30"
    assert default_run_id("/a/multi run/7/") == "multi_run-7"
    assert default_run_id("/") == "run"


def test_where_nothing_runs_secrets_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    launch = {
        "args": {"t": "${params.token}", "n": ["a ${oc.env:HF_TOKEN}"]},
        "env": {"HF_TOKEN": "${oc.env:HF_TOKEN}"},
        "env_per_rank": {0: {"T": "${oc.env:HF_TOKEN}"}},
    }
    root = {"params": {"token": "${oc.env:HF_TOKEN}"}}
    nowhere = launch_nodes.spec_of(launch, root, here=False)
    lines = launch_nodes.complaints(launch, root)
    assert [line.partition(": ")[0] for line in lines] == [
        "launch.args.t",
        "launch.args.n[0]",
        "launch.env.HF_TOKEN",
        "launch.env_per_rank.0.T",
    ]
    monkeypatch.setenv("HF_TOKEN", "hush")
    assert plan_text(launch_nodes.spec_of(launch, root)) == plan_text(nowhere)


def test_a_cluster_stands_beside_the_launch_node() -> None:
    cluster = {"backend": "slurm", "partition": "gpu", "setup": ["cd /home/me/x"], "detach": True}
    spec = spec_of({"entrypoint": "env", "nnodes": 4}, cwd="/home/me", cluster=cluster)
    assert list(yaml.safe_load(plan_text(spec))) == ["launch", "cluster"]
    assert portable_plan(spec, SOURCES)["cluster"]["setup"] == ["cd ${hydra:runtime.cwd}/x"]
    assert yaml.safe_load(plan_config(spec))["cluster"] == {
        "backend": "slurm",
        "partition": "gpu",
        "setup": ["cd ${hydra:runtime.cwd}/x"],
        "nodes": 4,
    }
    assert plan_hash(spec) != plan_hash(structs.replace(spec, cluster=None))
