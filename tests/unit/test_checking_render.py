"""What a check found, in all forms, whatever the names of files and the messages hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.checking.findings import (
    Checked,
    CheckedDiagnostic,
    Outcome,
    commands,
    render_checks,
    render_json,
    render_text,
    summary,
)
from lllaunch.verbs.check import tell

if TYPE_CHECKING:
    import pytest

A = Checked("a", "conf/exp/a.yaml", ("+exp=a",), "ab" * 32, locked=True)
B = Checked("vision/b", "conf/exp/vision/b.yaml", ("+exp=vision/b",))
FOUND = (
    CheckedDiagnostic.at(
        0, "unused-key", "conf/exp/a.yaml", 3, "params.lr", "has no effect", ("a",)
    ),
    CheckedDiagnostic.at(
        2, "mask", "conf/exp/a.yaml", 6, "launch.tee", "expected a mask, got 'al'", ("a",)
    ),
    CheckedDiagnostic.at(2, "yaml", "conf/exp/broken.yaml", 2, "", "is not valid YAML"),
    CheckedDiagnostic.at(
        5,
        "type",
        "conf/locks/a.yaml",
        1,
        "",
        "the plan of a is not the reviewed one:\n  x: 2",
        ("a",),
    ),
    CheckedDiagnostic.at(2, "type", "conf/model/m.yaml", 0, "width", "is wrong", ("a", "vision/b")),
)


def outcome(*found: CheckedDiagnostic) -> Outcome:
    files = ("conf/exp/a.yaml", "conf/exp/vision/b.yaml", "conf/exp/broken.yaml")
    return Outcome("conf", (A, B), ("conf/locks/a.yaml", "conf/locks/b.yaml"), files, found)


def test_text_as_compilers_write_it() -> None:
    assert render_text(outcome(*FOUND)) == (
        "conf/exp/a.yaml:3: warning: params.lr: has no effect [unused-key]\n"
        "conf/exp/a.yaml:6: launch.tee: expected a mask, got 'al' [mask]\n"
        "conf/exp/broken.yaml:2: is not valid YAML [yaml]\n"
        "conf/locks/a.yaml:1: the plan of a is not the reviewed one [type]:\n"
        "      x: 2\n"
        "conf/model/m.yaml: width: is wrong [type] (in a, vision/b)\n"
        "2 experiments, 4 problems, 1 warning\n"
    )
    many = CheckedDiagnostic.at(2, "type", "f", 1, "", "m", tuple("abcdef"))
    assert "f:1: m [type] (in a, b, c, d and 2 more)\n" in render_text(outcome(many))


def test_json() -> None:
    document = json.loads(render_json(outcome(*FOUND)))
    assert (document["version"], document["exit_code"]) == (1, 2)
    assert document["experiments"][0] == {
        "name": "a",
        "file": "conf/exp/a.yaml",
        "command": ["+exp=a"],
        "plan_hash": "ab" * 32,
        "locked": True,
    }
    problem = {"level": "error", "code": 2, "kind": "mask", "experiments": ["a"]}
    where = {"file": "conf/exp/a.yaml", "line": 6, "key": "launch.tee"}
    message = "expected a mask, got 'al'"
    assert document["problems"][1] == {**problem, **where, "message": message}
    assert [each["code"] for each in document["problems"]] == [0, 2, 2, 5, 2]
    assert document["problems"][4]["line"] is None
    warned = outcome(FOUND[0])
    assert json.loads(render_json(warned))["exit_code"] == 0
    assert json.loads(render_json(warned, strict=True))["exit_code"] == 2


def cases(of: Outcome, **options: Any) -> dict[str, ET.Element | None]:
    """The failure of each test case, None for those without."""
    root = ET.fromstring(render_checks(of, **options).encode())
    return {case.get("name", ""): case.find("failure") for case in root.iter("testcase")}


def test_each_experiment_lock_and_file_is_a_test_case() -> None:
    found = cases(outcome(*FOUND))
    failed = {
        name: (each.get("type"), each.text) for name, each in found.items() if each is not None
    }
    tee = "conf/exp/a.yaml:6: launch.tee: expected a mask, got 'al' [mask]\n"
    review = "conf/locks/a.yaml:1: the plan of a is not the reviewed one [type]:\n  x: 2\n"
    broken = "conf/exp/broken.yaml:2: is not valid YAML [yaml]\n"
    width = "conf/model/m.yaml: width: is wrong [type]\n"
    warned = "\nAll of the warnings:\nconf/exp/a.yaml:3: params.lr: has no effect [unused-key]\n"
    assert failed == {
        "experiment a": ("config", tee + review + width + warned),
        "experiment vision/b": ("config", width),
        "lock conf/locks/a.yaml": ("review", review),
        "file conf/exp/a.yaml": ("config", tee + warned),
        "file conf/exp/broken.yaml": ("config", broken),
        "file conf/model/m.yaml": ("config", width),
    }
    assert {name for name in found if name not in failed} == {
        "lock conf/locks/b.yaml",
        "file conf/exp/vision/b.yaml",
    }


def test_github_shows_ten_annotations_of_each_kind() -> None:
    assert commands(outcome(*FOUND))[:2] == [
        (
            "::error file=conf/exp/a.yaml,line=6,title=lllaunch check::"
            "launch.tee: expected a mask, got 'al' [mask]"
        ),
        "::error file=conf/exp/broken.yaml,line=2,title=lllaunch check::is not valid YAML [yaml]",
    ]
    assert "%0A  x: 2" in commands(outcome(*FOUND))[2]
    assert [each.split()[0] for each in commands(outcome(*FOUND))].count("::warning") == 1
    assert "::warning" not in " ".join(commands(outcome(*FOUND), strict=True))
    many = [CheckedDiagnostic.at(2, "type", "f", line, "", "m") for line in range(1, 30)]
    lines = commands(outcome(*many))
    assert len(lines) == 10
    assert lines[-1].endswith("::20 more errors, see the log or the summary")


def test_the_summary_of_a_step_fits() -> None:
    text = summary(outcome(*FOUND), 100_000)
    assert text.startswith("### lllaunch check: 2 experiments, 4 problems, 1 warning\n\n```text\n")
    assert "\nconf/exp/a.yaml:6: launch.tee: expected a mask, got 'al' [mask]\n" in text
    many = [
        CheckedDiagnostic.at(2, "type", "f", line, "", "message " * 20) for line in range(1, 500)
    ]
    short = summary(outcome(*many), 3000)
    assert len(short.encode()) <= 3000
    assert short.endswith("More is in the log.\n```\n")
    assert summary(outcome(*many), 10) == ""
    assert "```" not in summary(outcome(), 1000)


_TEXT = st.text(max_size=12)


@given(_TEXT, _TEXT, _TEXT, st.sampled_from([0, 2, 5]))
def test_any_text_can_be_told(file: str, key: str, message: str, code: int) -> None:
    name = f"x{message}"
    one = Checked(name, file, (f"+exp={message}",))
    whole = Outcome(
        file,
        (one,),
        (),
        (f"y{file}",),
        (CheckedDiagnostic.at(code, "type", file, 1, key, message, (name,)),),
    ).cleaned(str)
    json.loads(render_json(whole))
    assert ET.fromstring(render_checks(whole, strict=True).encode()) is not None
    for text in (render_text(whole), *commands(whole), summary(whole, 10_000)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        text.encode()
    assert all("\n" not in command for command in commands(whole))


def test_files_and_summaries(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    whole = outcome(*FOUND)
    path = tmp_path / "new" / "out.txt"
    tell(whole, "text", str(path), strict=False)
    assert path.read_text() == render_text(whole)
    tell(whole, "junit", str(path), strict=False)
    assert path.read_text() == render_checks(whole)
    assert capfdbinary.readouterr().out == b""
    step = tmp_path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    tell(whole, "github", None, strict=False)
    assert step.read_text().startswith("before\n\n### lllaunch check: 2 experiments")
    out = capfdbinary.readouterr().out.decode()
    assert out.startswith("::error file=conf/exp/a.yaml,line=6")
    assert out.endswith("\n2 experiments, 4 problems, 1 warning\n")
    tell(whole, "github", str(path), strict=False)
    assert path.read_text().startswith("### lllaunch check")
    assert step.read_text().count("###") == 1
    assert capfdbinary.readouterr().out.decode() == out
