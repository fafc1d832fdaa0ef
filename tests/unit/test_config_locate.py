"""Where a module and a name in it would come from, as far as that is certain without an import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from lllaunch.config.locate import Located, locate, locate_main

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
