"""An entrypoint: its form, and where a module and a name in it come from, without an import."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch.config.command import SearchPlace, check_file, check_program, parse_entrypoint
from lllaunch.config.locate import Located, locate, locate_main
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


# whether something is certainly not there
MISSING, UNKNOWN, FOUND = True, False, False


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    importlib.invalidate_caches()
    return path


def find(root: Path, module: str, qualname: str = "") -> Located:
    return locate(module, qualname, [str(root)])


def test_nothing_is_imported(tmp_path: Path) -> None:
    boom = "raise SystemExit('imported')\n"
    write(tmp_path, "pkg_a/__init__.py", boom)
    write(tmp_path, "pkg_a/sub/__init__.py", boom)
    write(tmp_path, "pkg_a/sub/mod.py", boom + "def f(): ...\n")
    found = find(tmp_path, "pkg_a.sub.mod", "f")
    assert (found.problem, found.file) == ("", str(tmp_path / "pkg_a/sub/mod.py"))
    assert "pkg_a" not in sys.modules


def test_all_directories_are_searched_for_parts_of_a_package(tmp_path: Path) -> None:
    write(tmp_path, "one/space/inner/mod_x.py", "def f(): ...\n")
    write(tmp_path, "two/space/inner/mod_y.py", "def g(): ...\n")
    path = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert not locate("space.inner.mod_x", "f", path).problem
    assert not locate("space.inner.mod_y", "g", path).problem
    missing = locate("space.inner.mod_z", "g", path)
    assert missing.problem == "package 'space.inner' has no module 'mod_z'"
    assert missing.hint.startswith("did you mean 'mod_")
    # of a module the first directory wins
    write(tmp_path, "one/twice.py", "def f(): ...\n")
    write(tmp_path, "two/twice.py", "def g(): ...\n")
    assert locate("twice", "g", path).problem


def test_a_missing_module_has_a_suggestion_and_a_module_has_no_parts(tmp_path: Path) -> None:
    write(tmp_path, "training.py")
    missing = find(tmp_path, "trainign")
    assert missing.problem == "there is no module 'trainign'"
    assert missing.hint == "did you mean 'training'?"
    part = find(tmp_path, "training.part")
    assert part.problem == "'training' is no package: it has no module 'part'"


def test_modules_without_source_cannot_be_judged() -> None:
    for module, name in (("builtins", "print"), ("time", "sleep"), ("os.path", "join")):
        assert not locate(module, name, sys.path).problem


def test_source_that_does_not_parse_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, "broken_one.py", "x = 1\ndef f(:\n")
    broken = find(tmp_path, "broken_one", "f")
    assert broken.problem.startswith(f"{str(file)!r} is not valid Python, line 2: ")


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        # whatever binds the name counts
        ("def f(): ...", FOUND),
        ("if True:\n    def f(): ...", FOUND),
        ("try:\n    from fast import f\nexcept ImportError:\n    from slow import f", FOUND),
        ("f = partial(print)", FOUND),
        ("a, (f, *b) = c", FOUND),
        ("from somewhere import g as f", FOUND),
        ("import f.sub", FOUND),
        ("(f := print)", FOUND),
        # what is made at run time leaves the question open
        ("from elsewhere import *", UNKNOWN),
        ("def __getattr__(name): ...", UNKNOWN),
        ("globals()['f'] = print", UNKNOWN),
        ("import sys\nsetattr(sys.modules[__name__], 'f', print)", UNKNOWN),
        ("def make():\n    global f\n    f = print\nmake()", UNKNOWN),
        # an inner scope's is not there
        ("def g():\n    f = 1", MISSING),
        ("class G:\n    def f(self): ...", MISSING),
        ("lambda f: f", MISSING),
    ],
)
def test_whether_a_name_is_there(tmp_path: Path, source: str, missing: bool) -> None:
    write(tmp_path, "some_module.py", source)
    assert bool(find(tmp_path, "some_module", "f").problem) is missing


@pytest.mark.parametrize(
    ("source", "name", "why", "hint"),
    [
        ("def train(): ...", "trian", "{} defines no 'trian'", "did you mean 'train'?"),
        ("f = 3", "f", "'f' in {} is a value, nothing that can be called", ""),
        (
            "async def f(): ...",
            "f",
            "'f' in {} is a coroutine function, which nobody would await",
            "",
        ),
    ],
)
def test_what_certainly_cannot_be_called(
    tmp_path: Path, source: str, name: str, why: str, hint: str
) -> None:
    file = write(tmp_path, "uncallable.py", source)
    unusable = find(tmp_path, "uncallable", name)
    assert unusable.problem
    assert (unusable.problem, unusable.hint) == (why.format(repr(str(file))), hint)


def test_methods_are_found_in_their_class(tmp_path: Path) -> None:
    source = "class A:\n    @staticmethod\n    def run(): ...\n    def go(self): ...\n"
    write(tmp_path, "classes.py", f"{source}class B(A):\n    ...\nC = A\n")
    assert not find(tmp_path, "classes", "A.run").problem
    go = find(tmp_path, "classes", "A.go").signature
    assert list(go.parameters if go else ()) == ["self"]
    assert find(tmp_path, "classes", "A.rnu").hint == "did you mean 'A.run'?"
    statuses = [bool(find(tmp_path, "classes", f"{name}.run").problem) for name in "BCD"]
    assert statuses == [UNKNOWN, UNKNOWN, MISSING]


def test_what_python_dash_m_would_run(tmp_path: Path) -> None:
    for name in ("app_a/__init__.py", "app_a/__main__.py", "app_b/__init__.py", "app_c.py"):
        write(tmp_path, name)
    path = [str(tmp_path)]
    assert locate_main("app_a", path).file == str(tmp_path / "app_a/__main__.py")
    assert not locate_main("app_c", path).problem
    none = locate_main("app_b", path)
    assert none.problem == ("'app_b' is a package without a __main__ module")
    assert locate_main("app_d", path).problem
