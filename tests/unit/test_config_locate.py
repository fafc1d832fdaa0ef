from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lllaunch.config.locate import Located, NameStatus, locate, locate_main

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    return _write


def find(tmp_path: Path, module: str, qualname: str = "") -> Located:
    return locate(module, qualname, [str(tmp_path)])


def test_nothing_is_imported(write: Write, tmp_path: Path) -> None:
    boom = "raise SystemExit('imported')\n"
    write("pkg_a/__init__.py", boom)
    write("pkg_a/sub/__init__.py", boom)
    write("pkg_a/sub/mod.py", boom + "def f(): ...\n")
    found = find(tmp_path, "pkg_a.sub.mod", "f")
    assert found.status is NameStatus.FOUND
    assert found.file == str(tmp_path / "pkg_a/sub/mod.py")
    assert "pkg_a" not in sys.modules


def test_namespace_packages_are_searched(write: Write, tmp_path: Path) -> None:
    write("one/space/inner/mod_x.py", "def f(): ...\n")
    write("two/space/inner/mod_y.py", "def g(): ...\n")
    path = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert locate("space.inner.mod_x", "f", path).status is NameStatus.FOUND
    assert locate("space.inner.mod_y", "g", path).status is NameStatus.FOUND
    missing = locate("space.inner.mod_z", "g", path)
    assert missing.status is NameStatus.MISSING
    assert missing.reason == "package 'space.inner' has no module 'mod_z'"
    assert missing.hint.startswith("did you mean 'mod_")


def test_the_first_directory_wins(write: Write, tmp_path: Path) -> None:
    write("one/twice.py", "def f(): ...\n")
    write("two/twice.py", "def g(): ...\n")
    path = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert locate("twice", "g", path).status is NameStatus.MISSING


def test_a_missing_module_has_a_suggestion(write: Write, tmp_path: Path) -> None:
    write("training.py", "")
    missing = find(tmp_path, "trainign")
    assert missing.status is NameStatus.MISSING
    assert missing.reason == "there is no module 'trainign'"
    assert missing.hint == "did you mean 'training'?"


def test_a_module_is_no_package(write: Write, tmp_path: Path) -> None:
    write("single.py", "")
    missing = find(tmp_path, "single.part")
    assert missing.reason == "'single' is no package: it has no module 'part'"


@pytest.mark.parametrize(
    "source",
    ["__path__ = []\n", "import sys\nsys.modules['hidden.part'] = sys\n"],
)
def test_a_package_that_makes_modules_cannot_be_judged(
    write: Write, tmp_path: Path, source: str
) -> None:
    write("hidden/__init__.py", source)
    assert find(tmp_path, "hidden.part").status is NameStatus.UNKNOWN


def test_modules_without_source_cannot_be_judged() -> None:
    assert locate("builtins", "print", sys.path).status is NameStatus.UNKNOWN
    assert locate("time", "sleep", sys.path).status is NameStatus.UNKNOWN
    assert locate("os.path", "join", sys.path).status is NameStatus.UNKNOWN


def test_a_finder_that_fails_leaves_the_question_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        @staticmethod
        def find_spec(name: str, path: object) -> None:
            raise RuntimeError("no")

    monkeypatch.setattr(sys, "meta_path", [Failing])
    found = locate("json", "loads", sys.path)
    assert found.status is NameStatus.UNKNOWN
    assert "no" in found.reason


def test_source_that_does_not_parse_is_told_with_its_line(write: Write, tmp_path: Path) -> None:
    file = write("broken_one.py", "x = 1\ndef f(:\n")
    broken = find(tmp_path, "broken_one", "f")
    assert broken.status is NameStatus.MISSING
    assert broken.reason.startswith(f"{str(file)!r} is not valid Python, line 2: ")


@pytest.mark.parametrize(
    "binding",
    [
        "def f(): ...",
        "if True:\n    def f(): ...",
        "try:\n    from fast import f\nexcept ImportError:\n    from slow import f",
        "class f: ...",
        "f = partial(print)",
        "f: object = partial(print)",
        "a, (f, *b) = c",
        "from somewhere import g as f",
        "import f.sub",
        "with open('x') as f: ...",
        "for f in []: ...",
        "(f := print)",
        "match 1:\n    case f: ...",
        "match []:\n    case [*f]: ...",
        "match {}:\n    case {**f}: ...",
        "@decorator\nasync def f(): ...",
        "def f(): ...\nf = wrap(f)",
    ],
)
def test_whatever_binds_a_name_counts(write: Write, tmp_path: Path, binding: str) -> None:
    write("bound_module.py", binding)
    assert find(tmp_path, "bound_module", "f").status is NameStatus.FOUND


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import *",
        "def __getattr__(name): ...",
        "globals()['f'] = print",
        "exec('def f(): ...')",
        "import sys\nsetattr(sys.modules[__name__], 'f', print)",
        "def make():\n    global f\n    f = print\nmake()",
    ],
)
def test_names_made_at_run_time_leave_the_question_open(
    write: Write, tmp_path: Path, source: str
) -> None:
    write("dynamic_module.py", source)
    assert find(tmp_path, "dynamic_module", "f").status is NameStatus.UNKNOWN


@pytest.mark.parametrize(
    "source", ["def g():\n    f = 1", "class G:\n    def f(self): ...", "lambda f: f", "print(f)"]
)
def test_a_name_of_an_inner_scope_is_not_there(write: Write, tmp_path: Path, source: str) -> None:
    write("inner_module.py", source)
    assert find(tmp_path, "inner_module", "f").status is NameStatus.MISSING


def test_a_missing_name_has_a_suggestion(write: Write, tmp_path: Path) -> None:
    file = write("names_module.py", "def train(): ...\ndef evaluate(): ...\n")
    missing = find(tmp_path, "names_module", "trian")
    assert missing.reason == f"{str(file)!r} defines no 'trian'"
    assert missing.hint == "did you mean 'train'?"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("f = 3", "is a value, nothing that can be called"),
        ("f: list = []", "is a value, nothing that can be called"),
        ("async def f(): ...", "is a coroutine function, which nobody would await"),
    ],
)
def test_what_certainly_cannot_be_called(
    write: Write, tmp_path: Path, source: str, why: str
) -> None:
    file = write("uncallable.py", source)
    unusable = find(tmp_path, "uncallable", "f")
    assert unusable.status is NameStatus.MISSING
    assert unusable.reason == f"'f' in {str(file)!r} {why}"


def test_methods_are_found_in_their_class(write: Write, tmp_path: Path) -> None:
    write(
        "classes.py",
        "class A:\n    @staticmethod\n    def run(): ...\n    def go(self): ...\n"
        "class B(A):\n    ...\nC = A\n",
    )
    assert find(tmp_path, "classes", "A.run").status is NameStatus.FOUND
    go = find(tmp_path, "classes", "A.go").signature
    assert list(go.parameters if go else ()) == ["self"]
    missing = find(tmp_path, "classes", "A.rnu")
    assert missing.status is NameStatus.MISSING
    assert missing.hint == "did you mean 'A.run'?"
    assert find(tmp_path, "classes", "B.run").status is NameStatus.UNKNOWN
    assert find(tmp_path, "classes", "C.run").status is NameStatus.UNKNOWN
    assert find(tmp_path, "classes", "D.run").status is NameStatus.MISSING


@pytest.mark.parametrize(
    "source",
    ["@wrap\ndef f(x): ...", "if x:\n    def f(x): ...", "def f(x): ...\nf = 1", "class f: ..."],
)
def test_a_signature_is_told_only_if_it_is_certain(
    write: Write, tmp_path: Path, source: str
) -> None:
    write("uncertain.py", source)
    found = find(tmp_path, "uncertain", "f")
    assert found.status is NameStatus.FOUND
    assert found.signature is None


def test_a_plain_signature_is_told(write: Write, tmp_path: Path) -> None:
    write("certain.py", "def f(a, b=1, /, c=2, *args, d, e=3, **more): ...")
    signature = find(tmp_path, "certain", "f").signature
    assert signature is not None
    names = [str(p).partition("=")[0] for p in signature.parameters.values()]
    assert names == ["a", "b", "c", "*args", "d", "e", "**more"]
    required = [p.name for p in signature.parameters.values() if p.default is p.empty]
    assert required == ["a", "args", "d", "more"]


def test_what_python_dash_m_would_run(write: Write, tmp_path: Path) -> None:
    write("app_a/__init__.py", "")
    write("app_a/__main__.py", "")
    write("app_b/__init__.py", "")
    write("app_c.py", "")
    path = [str(tmp_path)]
    assert locate_main("app_a", path).file == str(tmp_path / "app_a/__main__.py")
    assert locate_main("app_c", path).status is NameStatus.FOUND
    none = locate_main("app_b", path)
    assert none.status is NameStatus.MISSING
    assert none.reason == "'app_b' is a package without a __main__ module"
    assert locate_main("app_d", path).status is NameStatus.MISSING


def test_a_zip_file_on_the_path_is_searched(tmp_path: Path) -> None:
    import zipfile

    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_module.py", "def f(): ...")
    assert locate("zipped_module", "f", [str(archive)]).status is NameStatus.UNKNOWN
    assert locate("zipped_other", "f", [str(archive)]).status is NameStatus.MISSING
