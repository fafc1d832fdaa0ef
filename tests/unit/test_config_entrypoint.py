from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch.config.command import SearchPlace, check_file, check_program, parse_entrypoint
from lllaunch.errors import Unfit
from lllaunch.spec import Entrypoint


@pytest.mark.parametrize(
    ("text", "form", "name", "qualname"),
    [
        ("pkg.train:main", "function", "pkg.train", "main"),
        ("pkg:Class.method", "function", "pkg", "Class.method"),
        ("train.py", "script", "/here/train.py", ""),
        ("a b/train.py", "script", "/here/a b/train.py", ""),
        ("../x.py", "script", "/here/../x.py", ""),
        ("-m pkg.train", "module", "pkg.train", ""),
        ("echo", "program", "echo", ""),
        ("./run.sh", "program", "/here/./run.sh", ""),
        ("/opt/a:b", "program", "/opt/a:b", ""),
        ("python3.11", "program", "python3.11", ""),
    ],
)
def test_the_form_tells(text: str, form: Any, name: str, qualname: str) -> None:
    assert parse_entrypoint(f" {text} ", "/here") == Entrypoint(form, name, text, qualname)


MODULE = "a module alone after -m (-m package.module)"


@pytest.mark.parametrize(
    ("value", "expected", "hint"),
    [
        (3, "an entrypoint", "quote it"),
        ("-m", MODULE, ""),
        ("-m train.py", MODULE, "write 'train.py', without -m"),
        ("-m pkg --lr 1", MODULE, "give the arguments as 'args'"),
        ("python train.py", "one file, module, function or program", "name the script itself"),
        ("train.py:main", "a script (path.py) or a function", "'package.module:main'"),
        ("src/train.py:main", "a script (path.py) or a function", "'package.module:main'"),
        ("pkg.train:", "a function (package", ""),
        ("pkg-x:main", "a function (package", ""),
        ("__main__:main", "a function that workers can import", "name its module"),
        ("a\0b", "text without NUL", ""),
    ],
)
def test_what_has_none_of_the_forms(value: object, expected: str, hint: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_entrypoint(value, "/here")
    assert caught.value.expected.startswith(expected)
    assert hint in caught.value.hint


def refused(check: Callable[..., None], *args: object) -> Unfit:
    with pytest.raises(Unfit) as caught:
        check(*args)
    return caught.value


def script(path: Path, text: str) -> None:
    check_file(parse_entrypoint(text, str(path)))


def test_a_script_must_be_a_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    script(tmp_path, "train.py")
    problem = refused(script, tmp_path, "trian.py")
    assert problem.message == f"does not exist in {str(tmp_path)!r}"
    assert problem.hint == "did you mean 'train.py'?"
    assert refused(script, tmp_path, "sub dir --x train.py").hint == "arguments go under 'args'"
    (tmp_path / "dir.py").mkdir()
    with pytest.raises(Unfit, match="is a directory, not a script"):
        script(tmp_path, "dir.py")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(Unfit, match="is not a file"):
        script(tmp_path, "pipe.py")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Unfit, match="permission denied"):
        script(tmp_path, "train.py")


def program(path: Path, text: str, search_path: str = "") -> None:
    place = SearchPlace(str(path), search_paths=(search_path,))
    check_program(parse_entrypoint(text, str(path)), place)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_is_searched_on_path(tmp_path: Path) -> None:
    executable(tmp_path / "bin/simulate")
    program(tmp_path, "simulate", f"/nowhere:{tmp_path}/bin")
    problem = refused(program, tmp_path, "simulaet", f"/nowhere:{tmp_path}/bin")
    assert problem.message == "is not a program on PATH"
    assert problem.hint == "did you mean 'simulate'?"


def test_a_program_on_path_that_is_not_executable_is_named(tmp_path: Path) -> None:
    file = executable(tmp_path / "bin/simulate")
    file.chmod(0o644)
    problem = refused(program, tmp_path, "simulate", f"{tmp_path}/bin")
    assert problem.message == "is not executable"
    assert problem.detail == f"found only {str(file)!r}"
    executable(tmp_path / "bin2/simulate")
    program(tmp_path, "simulate", f"{tmp_path}/bin:{tmp_path}/bin2")


def test_a_program_with_a_slash_is_a_file(tmp_path: Path) -> None:
    file = executable(tmp_path / "run.sh")
    program(tmp_path, "./run.sh")
    problem = refused(program, tmp_path, "./rnu.sh")
    assert (problem.message, problem.hint) == (
        f"does not exist in {str(tmp_path)!r}",
        "did you mean 'run.sh'?",
    )
    file.chmod(0o644)
    problem = refused(program, tmp_path, "./run.sh")
    assert (problem.message, problem.hint) == ("is not executable", "chmod +x ./run.sh")
    with pytest.raises(Unfit, match="is a directory, not a program"):
        program(tmp_path, "/tmp")


def test_a_file_beside_the_user_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    executable(tmp_path / "bin/strings")
    for text, hint in [
        ("train", "did you mean 'train.py'?"),
        ("trian", "did you mean 'train.py'?"),
        ("string", "did you mean 'strings'?"),
        ("nvidia-smi -L", "arguments go under 'args'"),
    ]:
        assert refused(program, tmp_path, text, f"{tmp_path}/bin").hint == hint
