from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.config import plan
from lllaunch.config.nodes import HostContext
from lllaunch.config.plan import complete, hash_of, plan_hash, portable_plan
from lllaunch.config.resolve import resolve
from lllaunch.errors import ConfigError
from lllaunch.review.lock import (
    compare,
    lock_path,
    lock_text,
    name_problem,
    parse_lock,
    write_lock,
)
from lllaunch.spec import LaunchSpec


def spec_of(launch: Any, cwd: str = "/here", out: str = "/out/day/time", **root: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": launch, **root})
    return resolve(cfg, HostContext(runtime_cwd=cwd, output_dir=out))


SMALL = {"entrypoint": "env", "nproc": 2, "args": ["${hydra_out}/x"], "watchdog": "none"}
COMMAND = ["+exp=vision/resnet", "params.note=it's"]

GOLDEN_HEAD = """\
# The reviewed plan of vision/resnet: with launch.locked=true nothing else is started.
# Made by lllaunch, not to be edited. To renew it:
#   python -m lllaunch plan --lock +exp=vision/resnet 'params.note=it'"'"'s'
lock: 2
command:
- +exp=vision/resnet
- params.note=it's
plan_hash: """
GOLDEN_PLAN = """\
plan:
  launch:
    entrypoint: env
    args:
    - <output_dir>/x
    nproc: 2
    cwd: <cwd>/sub
    env:
      HF_TOKEN: ${oc.env:HF_TOKEN}
    watchdog:
      stall: null
      spin: null
"""


def golden_spec(place: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchSpec:
    (place / "sub").mkdir(parents=True)
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    out = f"{place}/outputs/day"
    env = {"HF_TOKEN": "${oc.env:HF_TOKEN}"}
    return spec_of({**SMALL, "cwd": "sub", "env": env}, str(place), out, hydra_out=out)


def test_a_lock_reads_like_this_and_is_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [golden_spec(tmp_path / name, monkeypatch) for name in ("one", "two")]
    one, two = (lock_text("vision/resnet", COMMAND, portable_plan(spec)) for spec in specs)
    assert one == two
    assert one == f"{GOLDEN_HEAD}{plan_hash(specs[0])}\n{GOLDEN_PLAN}"
    assert str(tmp_path) not in one
    assert "hf_planted_secret" not in one
    lock = parse_lock(one, "x")
    assert lock.command == tuple(COMMAND)
    assert lock.plan_hash == plan_hash(specs[1])
    assert compare(lock, specs[1]) == ()


def with_new_keys(
    make: Callable[[LaunchSpec], dict[str, Any]], *, value: bool
) -> Callable[[LaunchSpec], dict[str, Any]]:
    """Plans of an lllaunch that has two more settings."""

    def newer(spec: LaunchSpec) -> dict[str, Any]:
        launch = make(spec)["launch"]
        more = {"brand_new": value, "watchdog": {**launch["watchdog"], "newest": None}}
        return {"launch": {**launch, **more}}

    return newer


def test_a_new_setting_with_a_default_changes_no_lock_and_no_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = spec_of({**SMALL, "args": None})
    text = lock_text("a", [], portable_plan(before))
    hashed = plan_hash(before)
    watchdog = {**plan.ABSENT["watchdog"], "newest": None}
    monkeypatch.setattr(plan, "ABSENT", {**plan.ABSENT, "brand_new": False, "watchdog": watchdog})
    monkeypatch.setattr(plan, "plan_node", with_new_keys(plan.plan_node, value=False))

    assert portable_plan(before)["launch"]["watchdog"]["newest"] is None
    assert plan_hash(before) == hashed
    assert lock_text("a", [], portable_plan(before)) == text
    assert compare(parse_lock(text, "x"), before) == ()
    monkeypatch.setattr(plan, "plan_node", with_new_keys(plan.plan_node, value=True))
    assert plan_hash(before) != hashed
    (change,) = compare(parse_lock(text, "x"), before)
    assert str(change) == "launch.brand_new: false -> true"


def test_a_plan_with_odd_texts_comes_back_from_its_lock() -> None:
    odd: dict[Any, Any] = {
        "a": ["\ud800", "\x85\u2028", "\ufeff\r", "2020-01-01"],
        3: {True: "1e3"},
    }
    made = {"launch": {**portable_plan(spec_of({"entrypoint": "env"}))["launch"], **odd}}
    text = lock_text("a", ["\udc80"], made)
    lock = parse_lock(text, "x")
    assert lock.plan_hash == hash_of(made)
    assert lock.command == ("\udc80",)
    assert repr(lock.plan) == repr(complete(made))
    assert text == lock_text("a", ["\udc80"], made)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a/", "/etc/passwd", "a/../../b", "a//b", "./a", ".a", "-a", "a b", "a\nb", "a\\b"),
        *("é", "~a", "a\u202eb", "a" * 300, "a.yaml", "a/.git/b"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    assert name_problem(name) is not None
    with pytest.raises(ConfigError, match="the lock's name"):
        lock_path(str(tmp_path), name)
    with pytest.raises(ConfigError):
        write_lock(str(tmp_path), name, "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("link", ["conf", "conf/locks", "conf/locks/vision", "file"])
def test_a_link_out_of_the_project_is_not_followed(link: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "resnet.yaml").write_text("precious")
    where = root / ("conf/locks/vision/resnet.yaml" if link == "file" else link)
    where.parent.mkdir(parents=True)
    where.symlink_to(outside / "resnet.yaml" if link == "file" else outside)
    with pytest.raises(ConfigError, match="leads out of"):
        write_lock(str(root), "vision/resnet", "new")
    assert (outside / "resnet.yaml").read_text() == "precious"
    assert os.listdir(outside) == ["resnet.yaml"]


def good() -> str:
    return lock_text("a", ["+exp=a"], portable_plan(spec_of({"entrypoint": "env", "nproc": 2})))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lock: 2", "lock: 3", r"a.yaml:4: is no lock: invalid enum value 3 at \$.lock; renew"),
        ("lock: 2\n", "", "is no lock: object missing required field lock"),
        ("plan_hash: ", "plan_hsh: ", "object contains unknown field plan_hsh"),
        ("  launch:", "  lunch:", "a.yaml:8: is no lock: expected a plan"),
        ("nproc: 2", "nproc: !!python/object:os.system {}", "has a tag"),
        ("nproc: 2", "<<<<<<< HEAD\n    nproc: 2", "is not valid YAML"),
    ],
)
def test_a_broken_lock_is_told_with_file_and_line(old: str, new: str, message: str) -> None:
    text = good()
    assert old in text
    with pytest.raises(ConfigError, match=message) as caught:
        parse_lock(text.replace(old, new, 1), "a.yaml")
    assert all(str(problem).startswith("a.yaml:") for problem in caught.value.problems)


def test_a_merge_conflict_is_named() -> None:
    with pytest.raises(ConfigError, match="a merge that was not resolved"):
        parse_lock("lock: 1\n<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> b\n", "a.yaml")
