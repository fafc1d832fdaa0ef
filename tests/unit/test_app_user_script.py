from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lllaunch.app import own_worker
from lllaunch.app.own_worker import (
    Reach,
    UserFunction,
    UserScript,
    call_in_worker,
    moved,
    original_arguments,
    run_in_script,
    started_as,
)
from lllaunch.errors import ConfigError


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what running a script changes."""
    monkeypatch.setattr(own_worker._State, "worker", False)
    monkeypatch.setattr(own_worker._State, "task", None)
    monkeypatch.setattr(own_worker, "watch_apps", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["launcher"])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("users_module")
    monkeypatch.setitem(sys.modules, "users_module", module)
    return module


def test_a_library_is_not_run_in_workers(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.touch()
    here = ModuleType("__main__")
    here.__spec__, here.__file__ = None, str(path)
    assert started_as(here, needed=False) == UserScript(path=str(path))
    here.__file__ = f"{sys.prefix}/bin/python"
    assert started_as(here, needed=False) == UserScript()
    assert started_as(here, needed=True) == UserScript(path=here.__file__)


APP = """
import sys
from lllaunch.app.own_worker import call_in_worker

seen = []

def train(cfg):
    return cfg

def other(cfg): ...

def app(function=train):
    if not call_in_worker(function):
        raise AssertionError("this is no worker")
"""


def worker_of(tmp_path: Path, text: str, action: Any = lambda function: function(7)) -> Any:
    """What a worker makes of a script that calls its app."""
    path = tmp_path / "train.py"
    path.write_text(APP + text)
    return run_in_script(UserScript(path=str(path)), Reach("__main__", "train"), action)


def main() -> Any:
    return sys.modules["__main__"]


def test_the_scripts_own_handlers_do_not_see_what_the_function_raises(tmp_path: Path) -> None:
    def action(function: Any) -> Any:
        raise ZeroDivisionError

    text = (
        "try:\n    app()\nexcept Exception: seen.append('caught')\n"
        "finally: seen.append('finally')\n"
    )
    with pytest.raises(ZeroDivisionError):
        worker_of(tmp_path, text, action)
    assert main().seen == ["finally"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("try:\n    app()\nexcept BaseException: sys.exit(3)\n", []),
        ("try:\n    app()\nexcept BaseException: 1 / 0\n", []),
        ("sys.exit(app())\n", []),
        # the call of another app does nothing
        ("app(other)\nseen.append(1)\napp()\n", [1]),
        # it does not come to its app
        ("seen.append(1)\nsys.exit()\n", [1]),
    ],
)
def test_the_verdict_is_the_functions_whatever_the_script_does_beside(
    tmp_path: Path, text: str, seen: list[int]
) -> None:
    assert worker_of(tmp_path, text) == 7
    assert main().seen == seen


@pytest.mark.parametrize(("text", "raised"), [("sys.exit(2)", SystemExit), ("1 / 0", Exception)])
def test_a_script_that_fails_before_its_app_ends_before_the_function_runs(
    tmp_path: Path, text: str, raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        worker_of(tmp_path, text)


def test_the_app_may_be_called_outside_of_workers_only() -> None:
    def train(cfg: Any) -> None: ...

    assert not call_in_worker(train)

    def action(_: Any) -> None:
        call_in_worker(train)

    with pytest.raises(RuntimeError, match=r"call train\(cfg\)"):
        run_in_script(UserScript(), Reach("json", "loads"), action)


@pytest.mark.parametrize(
    ("command", "script", "expected"),
    [
        (["python", "-u", "train.py", "a", "b=1"], UserScript(path="/x/train.py"), ["a", "b=1"]),
        (["python", "../x/train.py"], UserScript(path="/x/train.py"), []),
        (["python", "-X", "dev", "-m", "pkg", "-m"], UserScript(module="pkg.__main__"), ["-m"]),
        # something else has started the script
        (["python", "/bin/runner", "train.py.orig"], UserScript(path="/x/train.py"), ["changed"]),
    ],
)
def test_workers_get_the_arguments_that_the_script_was_started_with(
    monkeypatch: pytest.MonkeyPatch, command: list[str], script: UserScript, expected: list[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", command)
    monkeypatch.setattr(sys, "argv", ["train.py", "changed"])
    assert original_arguments(script, "/x") == ("train.py", *expected)


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [
        ("train.py", "__main__", "train.py:train"),
        ("start.py", "users_module", "users_module:train"),
        (None, "__main__", ":train"),
    ],
)
def test_messages_and_plans_name_the_function_as_its_user_would(
    file: str | None,
    module: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = ModuleType("__main__"), ModuleType(module)
    here.__spec__, here.__file__ = None, file and str(tmp_path / file)
    (tmp_path / (file or "other")).touch()
    monkeypatch.setitem(sys.modules, module, there)
    monkeypatch.setitem(sys.modules, "__main__", here)
    train = function_of(sys.modules[module])
    vars(sys.modules[module])["train"] = train
    user = UserFunction.of(train)
    assert user.entrypoint.text == expected
    # of what was read from standard input there is nothing that workers could import
    assert user.forked == (file is None)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/out/logs/deep/train.log", "/attempt/0/logs/deep/train.log"),
        ("/output/train.log", "/attempt/0/train.log"),
    ],
)
def test_a_log_file_moves_into_the_workers_directory(
    tmp_path: Path, file: str, expected: str
) -> None:
    found = moved(f"{tmp_path}{file}", f"{tmp_path}/out", f"{tmp_path}/attempt/0")
    assert found == f"{tmp_path}{expected}"
    assert Path(found).parent.is_dir()


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(cfg: Any = None) -> Any:
        return function(cfg)

    return wrapper


def function_of(module: Any, qualname: str = "train") -> Any:
    def train(cfg: Any) -> None: ...

    train.__module__, train.__qualname__ = module.__name__, qualname
    return train


def found(function: Any) -> Reach:
    reach = Reach.of(function)
    assert reach is not None
    return reach


def test_the_function_under_the_decorator_is_found(module: Any) -> None:
    train = function_of(module)
    module.train = decorated(train)
    assert Reach.of(train) == Reach("users_module", "train", 1)
    assert Reach("users_module", "train", 1).find() is train
    # decorators below ours belong to the function
    below = decorated(train)
    module.train = decorated(below)
    assert found(below).find() is below
    # and it need not be replaced by its decorated form
    module.train, module.app = train, decorated(train)
    assert found(train) == Reach("users_module", "train", 0)
    assert Reach("users_module", "train", 0).find() is train
    method = function_of(module, "Apps.train")
    module.Apps = type("Apps", (), {"train": staticmethod(decorated(method))})
    assert found(method) == Reach("users_module", "Apps.train", 1)


@pytest.mark.parametrize("what", ["missing", "another", "partial"])
def test_a_function_that_workers_would_not_find_is_an_error(module: Any, what: str) -> None:
    train = function_of(module)
    if what == "another":
        module.train = lambda cfg: None
    with pytest.raises(ConfigError, match=r"lllaunch\.main"):
        UserFunction.of(functools.partial(train) if what == "partial" else train, importable=True)
