"""Functions whose calls run inside a context manager, whatever kind of function they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from lllaunch.timer.client import Countdown

F = TypeVar("F", bound=Callable[..., Any])


def place_of(function: Callable[..., Any]) -> str | None:
    """Returns ``FILE#LINE`` of a function's definition; None if it is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{code.co_filename}#{code.co_firstlineno}"


def decorate(function: F, countdown: Callable[[], Countdown]) -> F:
    """Returns a function of the same kind whose body runs with a timer.

    Raises:
        TypeError: it is no function: a class, a classmethod object, ...
    """
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"a timer decorates functions, not {function!r}")
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, countdown)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, countdown)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, countdown)
    else:
        wrapper = _plain(function, countdown)
    return cast("F", functools.wraps(function)(wrapper))


def _plain(function: Callable[..., Any], countdown: Callable[[], Countdown]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with countdown():
            return function(*args, **kwargs)

    return wrapper


def _coroutine(
    function: Callable[..., Any], countdown: Callable[[], Countdown]
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        async with countdown():
            return await function(*args, **kwargs)

    return wrapper


def _generator(
    function: Callable[..., Any], countdown: Callable[[], Countdown]
) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with countdown():
            return (yield from function(*args, **kwargs))

    return wrapper


def _async_generator(
    function: Callable[..., Any], countdown: Callable[[], Countdown]
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with countdown():
            inner = function(*args, **kwargs)
            step = inner.__anext__()
            try:
                # `yield from` for async generators, which Python does not have.
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = inner.asend((yield item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - thrown in from outside
                        step = inner.athrow(error)
            finally:
                await inner.aclose()

    return wrapper
