from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lllaunch.app.own_worker import HydraCall, Reach, UserScript, moved, run


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/out/train.log", "/attempt/0/train.log"),
        ("/out/logs/deep/train.log", "/attempt/0/logs/deep/train.log"),
        ("/elsewhere/train.log", "/attempt/0/train.log"),
        ("/output/train.log", "/attempt/0/train.log"),
    ],
)
def test_a_log_file_moves_into_the_workers_directory(
    tmp_path: Path, file: str, expected: str
) -> None:
    assert moved(f"{tmp_path}{file}", f"{tmp_path}/out", f"{tmp_path}/attempt/0") == (
        f"{tmp_path}{expected}"
    )
    assert Path(f"{tmp_path}{expected}").parent.is_dir()


def call(script: UserScript, module: str) -> HydraCall:
    return HydraCall(script, Reach(module, "train"), b"", ("train.py",), (), (), "/x")


def test_the_target_is_a_plain_function_call() -> None:
    made = call(UserScript(path="/x/train.py"), "__main__")
    target = made.target()
    assert (target.module, target.qualname) == (run.__module__, "run")
    assert pickle.loads(target.call) == ((made,), {})


@pytest.mark.parametrize(
    ("script", "module", "expected"),
    [
        (UserScript(path="/x/train.py"), "__main__", "train.py:train"),
        (UserScript(path="/x/start.py"), "library", "library:train"),
        (UserScript(module="pkg.app"), "__main__", "pkg.app:train"),
    ],
)
def test_messages_and_plans_name_it_as_its_user_would(
    script: UserScript, module: str, expected: str
) -> None:
    assert call(script, module).entrypoint().text == expected
