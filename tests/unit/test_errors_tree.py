from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from lllaunch import errors
from lllaunch.errors import LaunchError, Problem

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LaunchError) and kind is not LaunchError
]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_pickling_with_all_they_know(kind: type[LaunchError]) -> None:
    values = [
        (Problem("a.b", "1", "is wrong", "write 2"),) if each.name == "problems" else each.name
        for each in fields(kind)  # type: ignore[arg-type]
    ]
    error = kind(*values)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert [getattr(again, each.name) for each in fields(kind)] == values  # type: ignore[arg-type]
    assert again.exit_code == error.exit_code
