from __future__ import annotations

import weakref
from collections.abc import Callable

from lllaunch.spawner.preloading import _forget_finalizers


def function_of(module: str, done: list[str]) -> Callable[[], None]:
    def finish() -> None:
        done.append(module)

    finish.__module__ = module
    return finish


def test_only_what_torch_takes_apart_at_the_end_is_forgotten() -> None:
    class Kept:
        pass

    objects = [Kept(), Kept()]
    done: list[str] = []
    weakref.finalize(objects[0], function_of("torch.library", done))
    weakref.finalize(objects[1], function_of("users.module", done))
    _forget_finalizers()
    objects.clear()
    assert done == ["users.module"]
