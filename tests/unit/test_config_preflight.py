"""``launch.preflight`` and ``launch.min_disk``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.plan import plan_hash, plan_text, portable_plan
from lllaunch.config.preflight import PREFLIGHT_SYNONYMS
from lllaunch.config.resolve import resolve
from lllaunch.errors import ConfigError
from lllaunch.run.redact import Redactor
from lllaunch.spec import LaunchSpec, Preflight


def spec_of(preflight: Any = None, *, at: str = "/", **more: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", "preflight": preflight, **more}})
    return resolve(cfg, runtime_cwd=at, output_dir="/out")


def complaints(preflight: Any = None, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(preflight, **more)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("written", "command"),
    [
        (["env", "-u", 3], ("env", "-u", "3")),
        ("env -u 'A B'", ("env", "-u", "A B")),
        ({"command": "env -0"}, ("env", "-0")),
        ({"command": ["env"], "timeout": None}, ("env",)),
    ],
)
def test_a_command(written: Any, command: tuple[str, ...]) -> None:
    assert spec_of(written).preflight == Preflight(command, 300.0)


def test_a_time_limit() -> None:
    assert spec_of({"command": "env", "timeout": "30s"}).preflight == Preflight(("env",), 30.0)


def test_nothing_is_run_unless_it_is_asked_for() -> None:
    spec = spec_of()
    assert spec.preflight is None
    assert spec.min_disk is None
    assert not {"preflight", "min_disk"} & portable_plan(spec).keys()


def test_a_program_with_a_slash_is_a_file_where_the_command_was_given(tmp_path: Path) -> None:
    program = tmp_path / "check"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    spec = spec_of("./check", at=str(tmp_path))
    assert spec.preflight is not None
    assert spec.preflight.program(spec.runtime_cwd) == f"{tmp_path}/./check"
    assert Preflight(("env",)).program("/x") == "env"


_PREFLIGHT = "a program and its arguments ([nvidia-smi, -L]), or {command: [...], timeout: 5m}"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (["nowhere-x"], "[0]: 'nowhere-x' is not a program on PATH [preflight]"),
        ("./nowhere", ": './nowhere' does not exist [preflight]"),
        ({"command": ["./nowhere"]}, ".command[0]: './nowhere' does not exist [preflight]"),
        ([], f": expected {_PREFLIGHT}, got [] [preflight]"),
        ("", f": expected {_PREFLIGHT}, got '' [preflight]"),
        (7, f": expected {_PREFLIGHT}, got 7 [preflight]"),
        ("env 'A", ': expected a command line, got "env \'A"; No closing quotation [preflight]'),
        (
            ["env", None],
            "[1]: expected text or a number, got null; quote it, or leave it out [preflight]",
        ),
        (
            {"command": "env", "timeout": 0},
            ".timeout: expected a duration of more than 0, got 0 [duration]",
        ),
        ({"timeout": 3}, f".command: expected {_PREFLIGHT}, got null [preflight]"),
        (
            ["env", "${worker:rank}"],
            (
                "[1]: '${worker:rank}' asks for a worker's fact where all workers have one value; "
                "only args, env, env_per_rank, log_line_prefix may have ${worker:...} "
                "[worker-variable]"
            ),
        ),
    ],
)
def test_one_mistake_is_one_line(
    written: Any, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert complaints(written) == [f"launch.preflight{told}"]


@pytest.mark.parametrize("written", PREFLIGHT_SYNONYMS)
def test_another_word_for_a_key_says_which(written: str) -> None:
    (line,) = complaints({"command": "env", written: "x"})
    told = f"unknown setting; did you mean {PREFLIGHT_SYNONYMS[written]!r}? [unknown-key]"
    assert line == f"launch.preflight.{written}: {told}"


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (["env", "${oc.env:MY_TOKEN}"], ["env", "${oc.env:MY_TOKEN}"]),
        ("env --with ${oc.env:MY_TOKEN}", "env --with ${oc.env:MY_TOKEN}"),
    ],
)
def test_a_secret_argument_is_written_nowhere(
    written: Any, planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    spec = spec_of(written)
    assert spec.preflight is not None
    assert spec.preflight.command[-1] == "hunter2hunter2"
    assert "hunter2" not in repr(spec)
    text = plan_text(spec)
    assert yaml.safe_load(text)["launch"]["preflight"]["command"] == planned
    assert resolve(OmegaConf.create(text), runtime_cwd="/", output_dir="/out") == spec
    hide = Redactor.of(spec)
    assert hide(spec.preflight.text) == hide(spec.preflight.text).replace("hunter2", "")
    assert hide("env --with") == "env --with"


def test_another_preflight_is_another_plan() -> None:
    hashes = {plan_hash(spec_of(each)) for each in (None, "env", "env -0", ["env", "-0"])}
    assert len(hashes) == 3


def test_a_minimum_of_disk_space() -> None:
    assert spec_of(min_disk="10GiB").min_disk == 10 * 1024**3
    for size in (0, -1):
        told = f"expected a size of more than 0, got {size}; null is for no such limit [size]"
        assert complaints(min_disk=size) == [f"launch.min_disk: {told}"]
