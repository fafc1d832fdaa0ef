"""The plan of any valid config, read back as a config, is the same plan with the same hash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.verbs import hydra_put_back

from lllaunch.app.composed import Composition, ConfigRequest
from lllaunch.config.plan import dump_yaml, plan_config, plan_hash, portable_plan
from lllaunch.config.tree import escape
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import RESTART_CAUSES, LaunchSpec

# what YAML, OmegaConf or the plan itself could take for something else
SPECIAL = [
    *("", " ", "~", "null", "true", "on", "1", "1.5", "1e3", "0x1f", "1_000", "12:30", "-", ".inf"),
    *("${a}", "\\${a}", "\\\\${a}", "${", "$", "${oc.env:HOME}", "${hydra:runtime.cwd}", "a: b"),
    *(
        "\\",
        "'",
        '"',
        "# no comment",
        "a\nb",
        "\n",
        "\t",
        "\r\n",
        "\u2028",
        "\x85",
        "\ufeff",
        "é",
        "🐘",
    ),
    *("${worker:rank}", "\\${worker:rank}", "<cwd>", "<output_dir>", "{a}", "[1", "&a", "*a", "!x"),
    *("@CWD@", "@CWD@/x", "\\@CWD@", "a@CWD@\\", "$@CWD@", "@CWD@x", "@OUT@/a b", "\\\\@OUT@"),
]
texts = (
    st.sampled_from(SPECIAL)
    | st.text("ab1.${}:\\'\" \n~#-é@", max_size=8)
    | st.lists(st.sampled_from(SPECIAL), max_size=3).map("".join)
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
options = st.text("abc-_.é", min_size=1, max_size=4)
on_command_line = numbers | texts
variables = st.dictionaries(
    st.text("ABC_.é", min_size=1, max_size=3).filter(lambda name: not is_secret_name(name)),
    texts | st.integers(),
    max_size=3,
)
durations = (
    st.floats(1e-6, 1e6) | st.integers(0, 10**6) | st.sampled_from(["1h30m", "5s", "200ms", "0"])
)
limits = st.none() | st.just(False) | st.floats(1, 1e6) | st.integers(1, 10**6)
streams = st.sampled_from(["none", "out", "err", "all", 0, 1, 2, 3])
masks = (
    streams
    | st.sampled_from([None, False, "0:all", "1:out 0:err", "0-1:all"])
    | st.just({0: "all", "1": "err"})
)
lines = st.text("ab1.é \\'\"#:-", min_size=1, max_size=6).map(lambda text: f"x{text}x")
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "role": lines,
    "start_method": st.sampled_from(["forkserver", "spawn"]),
    "preload": st.lists(st.sampled_from(["json", "decimal"]), max_size=2, unique=True),
    "cwd": st.sampled_from([None, ".", "sub dir", "@CWD@", "@OUT@"]),
    "env": variables,
    "env_per_rank": st.dictionaries(st.sampled_from([0, 1, "0"]), variables, max_size=1),
    "redirects": masks,
    "tee": masks,
    "local_ranks_filter": st.sampled_from([None, [0], "0-1", ["0-1"], 1, []]),
    "duplicate_stdout_filters": st.lists(lines, max_size=2),
    "log_line_prefix": st.none() | lines | st.just("[${worker:rank}] "),
    "collapse": st.none() | st.booleans(),
    "log_dir": st.sampled_from([None, "logs", "@CWD@/a b", "@OUT@/logs"]),
    "grace_period": durations,
    "signals": st.sampled_from(["SIGTERM", ["SIGINT", "SIGUSR1"], "SIGTERM,SIGHUP"]),
    "watchdog": st.sampled_from(["none", "default", "strict", None, False])
    | st.fixed_dictionaries(
        {},
        optional={
            "preset": st.sampled_from(["none", "default", "strict"]),
            "timeout": limits,
            "stall": limits,
            "warmup": durations,
            "memory": st.sampled_from([None, "1GiB", "1536MiB", 2**21]),
        },
    ),
    "max_restarts": st.integers(0, 5),
    "restart": st.none()
    | st.fixed_dictionaries(
        {}, optional={"on": st.lists(st.sampled_from(RESTART_CAUSES)), "delay": st.just("2s")}
    ),
    "resources": st.sampled_from([None, {"gpus_per_proc": 1}, {"cpus_per_proc": 0}]),
    "virtual_local_rank": st.booleans(),
    "run_id": st.none() | lines,
    "locked": st.sampled_from([False, True, "mine"]),
}
call = st.one_of(
    st.fixed_dictionaries(
        {
            "entrypoint": st.sampled_from(["env", "-m json.tool", "run me.py"]),
            "args": st.lists(on_command_line, max_size=3)
            | st.dictionaries(
                options,
                on_command_line | st.booleans() | st.none() | st.lists(on_command_line, max_size=2),
                max_size=3,
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "entrypoint": st.just("pkg.fun:takes"),
            "args": st.lists(values, max_size=3)
            | st.dictionaries(st.text("abé_", min_size=1, max_size=3), values, max_size=3),
        }
    ),
)
nodes = st.builds(
    lambda call, rest, nproc: {**call, **rest, "nproc": nproc},
    call,
    st.fixed_dictionaries({}, optional=COMMON),
    st.sampled_from([2, 3, "cpu", "gpu", "auto"]),
)


@pytest.fixture(scope="module")
def open_composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """Composes conf/exp/x.yaml of a directory that is the working directory."""
    top = tmp_path_factory.mktemp("a tree")
    for directory in ("conf/exp", "sub dir", "pkg"):
        (top / directory).mkdir(parents=True)
    (top / "run me.py").write_text("")
    (top / "pkg/fun.py").write_text("def takes(*args, **kwargs): pass\n")
    with pytest.MonkeyPatch.context() as patch, hydra_put_back():
        patch.chdir(top)
        with Composition(ConfigRequest(("+exp=x", "hydra.run.dir=the output"))) as composed:
            yield composed


@settings(
    max_examples=20,
    deadline=None,
    # to shrink takes minutes, and a node is easy to read as it is
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(nodes)
@example({"entrypoint": "env", "env": {"A": "@CWD@${oc.env:HOME}"}, "nproc": 2})
def test_a_plan_read_back_is_the_same_plan(
    open_composed: Composition, node: dict[str, Any]
) -> None:
    top = Path.cwd()
    config = dump_yaml({"launch": placed(node, top)})
    first = plan_of(open_composed, config)
    # what plan prints, and a run writes down
    again = plan_of(open_composed, plan_config(first))
    assert portable_plan(again) == portable_plan(first)
    assert plan_hash(again) == plan_hash(first)
    assert plan_config(again) == plan_config(first)
    for name in ("args", "kwargs", "env", "env_per_rank", "redirects", "tee", "watchdog", "cwd"):
        assert getattr(again, name) == getattr(first, name)


def plan_of(composed: Composition, config: str) -> LaunchSpec:
    path = Path("conf/exp/x.yaml")
    path.write_text(f"# @package _global_\n{config}", encoding="utf-8")
    return composed.plan(composed.compose())


def placed(value: Any, top: Path) -> Any:
    """The value as a config says it, with real directories in it."""
    if isinstance(value, dict):
        return {key: placed(item, top) for key, item in value.items()}
    if isinstance(value, list):
        return [placed(item, top) for item in value]
    if isinstance(value, str):
        text = value.replace("@CWD@", str(top)).replace("@OUT@", str(top / "the output"))
        return escape(text)
    return value
