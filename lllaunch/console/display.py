"""What only shows something can end nothing: the boundary around all that does.

Whatever an error of it is, a run or a sweep goes on and keeps its result and its exit code.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from lllaunch.console.stream import Outlet
from lllaunch.signal_source import SignalException
from lllaunch.text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_PATIENCE_S = 0.2


@contextlib.contextmanager
def showing(what: str) -> Iterator[None]:
    """Leave out the rest of a block that only shows something where an error comes.

    Standard error says that there is no `what`, unless that is empty: it was said before.
    """
    try:
        yield
    except SignalException:
        # no error of what is shown: it asks this process to end
        raise
    except Exception as error:  # noqa: BLE001 - a bug of a display is no reason to end a training
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = first_line(f"{type(error).__name__}: {error}")
        if what and sys.stderr is not None:
            line = f"lllaunch: no {what}: {text} ({frame.filename}:{frame.lineno})\n"
            with contextlib.suppress(Exception):
                Outlet(sys.stderr).put(line, _PATIENCE_S)


def display(what: str, *last: str) -> Callable[[type[T]], type[T]]:
    """Make what its public methods show end nothing, by a decorator of a class.

    The first error of an object switches it off, and says that there is no `what`. Its methods do
    nothing from then on, and return None. Those that are `last` are tried all the same.
    """

    def guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_off or name in last:
                with showing("" if self.is_off else what):
                    return method(self, *args, **kwargs)
                self.is_off = True
            return None

        return call

    def decorated(cls: type[T]) -> type[T]:
        shown: Any = cls
        shown.is_off = False
        for name, method in list(vars(cls).items()):
            if callable(method) and (name == "__init__" or not name.startswith("_")):
                setattr(shown, name, guarded(name, method))
        return cls

    return decorated
