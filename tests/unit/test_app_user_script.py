from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lllaunch.app import user_script
from lllaunch.app.user_script import (
    Reach,
    Reached,
    Script,
    check_reachable,
    decline_call,
    find_function,
    import_script,
    reach_of,
    started_as,
)
from lllaunch.errors import ConfigError


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what importing a script changes."""
    monkeypatch.setattr(user_script._State, "worker", False)
    monkeypatch.setattr(user_script._State, "importing", False)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("users_module")
    monkeypatch.setitem(sys.modules, "users_module", module)
    return module


def main_module(name: str = "", file: Path | None = None) -> ModuleType:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None) if name else None
    if file is not None:
        main.__file__ = str(file)
    return main


def test_a_script_is_known_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("")
    assert started_as(main_module(file=path), needed=True) == Script(path=str(path))


def test_a_module_is_known_by_its_name(tmp_path: Path) -> None:
    assert started_as(main_module("pkg.train"), needed=True) == Script(module="pkg.train")


def test_a_package_is_imported_only_if_the_function_is_in_its_main() -> None:
    main = main_module("pkg.__main__")
    assert started_as(main, needed=False) == Script()
    assert started_as(main, needed=True) == Script(module="pkg.__main__")


def test_a_command_line_or_a_console_is_no_script() -> None:
    assert started_as(main_module(), needed=True) == Script()
    assert started_as(main_module(file=Path("<stdin>")), needed=True) == Script()


def test_a_script_is_imported_under_the_name_that_its_guard_refuses(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("name = __name__\nif __name__ == '__main__':\n    raise SystemExit(1)\n")
    import_script(Script(path=str(path)))
    main: Any = sys.modules["__main__"]
    assert main is sys.modules["__mp_main__"]
    assert main.name == "__mp_main__"
    # multiprocessing in the worker asks for it
    assert main.__spec__ is None
    assert main.__file__ == str(path)


def test_the_import_ends_where_an_unguarded_script_calls_the_function(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from lllaunch.app.user_script import decline_call\n"
        "before = 1\ndecline_call('train')\nafter = 1\n"
    )
    import_script(Script(path=str(path)))
    main = sys.modules["__main__"]
    assert hasattr(main, "before")
    assert not hasattr(main, "after")


def test_a_module_is_imported_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_app.py").write_text("name = __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_app", raising=False)
    import_script(Script(module="users_app"))
    main: Any = sys.modules["__main__"]
    assert main is sys.modules["users_app"]
    assert main.name == "users_app"
    monkeypatch.delitem(sys.modules, "users_app")


def test_a_module_that_is_gone_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_app"):
        import_script(Script(module="no_such_app"))


def test_the_app_may_be_called_outside_of_workers_only() -> None:
    decline_call("train")
    import_script(Script())
    with pytest.raises(RuntimeError, match=r"call train\(cfg\)"):
        decline_call("train")
    user_script._State.importing = True
    with pytest.raises(Reached):
        decline_call("train")


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(cfg: Any = None) -> Any:
        return function(cfg)

    return wrapper


def function_of(module: Any, qualname: str = "train") -> Any:
    def train(cfg: Any) -> None: ...

    train.__module__, train.__qualname__ = module.__name__, qualname
    return train


def test_the_function_under_the_decorator_is_found(module: Any) -> None:
    train = function_of(module)
    module.train = decorated(train)
    assert reach_of(train) == Reach("users_module", "train", 1)
    assert find_function(Reach("users_module", "train", 1)) is train


def test_other_decorators_around_ours_do_not_hide_it(module: Any) -> None:
    train = function_of(module)
    module.train = decorated(decorated(train))
    assert find_function(check_reachable(train)) is train


def test_decorators_below_ours_belong_to_the_function(module: Any) -> None:
    train = decorated(function_of(module))
    module.train = decorated(train)
    assert find_function(check_reachable(train)) is train


def test_a_function_that_was_not_replaced_by_its_decorated_form_is_found(module: Any) -> None:
    train = function_of(module)
    module.train = train
    module.app = decorated(train)
    assert check_reachable(train) == Reach("users_module", "train", 0)
    assert find_function(Reach("users_module", "train", 0)) is train


def test_a_function_is_reachable_by_its_qualified_name(module: Any) -> None:
    train = function_of(module, "Apps.train")
    module.Apps = type("Apps", (), {"train": staticmethod(decorated(train))})
    assert check_reachable(train) == Reach("users_module", "Apps.train", 1)


def test_a_worker_whose_module_lacks_a_layer_says_so(module: Any) -> None:
    module.train = function_of(module)
    with pytest.raises(ConfigError, match=r"users_module:train"):
        find_function(Reach("users_module", "train", 2))


@pytest.mark.parametrize("what", ["missing", "another", "partial"])
def test_a_function_that_workers_would_not_find_is_an_error(module: Any, what: str) -> None:
    def train(cfg: Any) -> None: ...

    train.__module__, train.__qualname__ = "users_module", "train"
    if what == "another":
        module.train = lambda cfg: None
    unreachable = functools.partial(train) if what == "partial" else train
    with pytest.raises(ConfigError, match=r"lllaunch\.main"):
        check_reachable(unreachable)
