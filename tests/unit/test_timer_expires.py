"""``expires`` as a block, as a decorator and in asyncio; names of timers that overlap."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lllaunch.timer import TimerClient, configure, deadline, expires
from lllaunch.timer import api as client_module


class Recorder(TimerClient):
    """Takes note of what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.expirations: list[float] = []
        self.error: OSError | None = None

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("acquire", scope_id))
        self.expirations.append(expiration_time)

    def release(self, scope_id: str) -> None:
        self.calls.append(("release", scope_id))


def both(scope: str) -> list[tuple[str, str]]:
    return [("acquire", scope), ("release", scope)]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A client that is configured for the test."""
    monkeypatch.setattr(client_module, "_configured", [])
    monkeypatch.delenv(client_module.TIMER_FILE, raising=False)
    recorder = Recorder()
    configure(recorder)
    return recorder


def test_the_timer_is_taken_back_after_an_exception(client: Recorder) -> None:
    with pytest.raises(KeyError), expires(5, "work"):
        raise KeyError("x")
    assert client.calls == both("work")


def test_what_was_not_set_is_not_taken_back(client: Recorder) -> None:
    client.error = OSError("no room")
    with pytest.raises(OSError, match="no room"), expires(5, "work"):
        pytest.fail("the block was entered")
    client.error = None
    assert client.calls == []
    # Its name is free again.
    with expires(5, "work"):
        pass
    assert client.calls == both("work")


def test_the_default_scope_is_the_place_of_the_call(client: Recorder) -> None:
    with expires(5):
        here = sys._getframe().f_lineno - 1
    assert client.calls == both(f"{__file__}#{here}")


@pytest.mark.parametrize("after", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_number_of_seconds_is_refused(client: Recorder, after: float) -> None:
    with pytest.raises(ValueError, match="expires: after="):
        expires(after)


def test_a_timer_can_be_used_again_but_not_twice_at_once(client: Recorder) -> None:
    timer = expires(5, "work")
    with timer:
        pass
    with timer, pytest.raises(RuntimeError, match="make one for each"), timer:
        pytest.fail("entered twice")
    assert client.calls == both("work") * 2


def test_a_scope_has_one_timer_as_in_torch(client: Recorder) -> None:
    def recurse(depth: int) -> None:
        with expires(5, "work"):
            if depth > 1:
                recurse(depth - 1)

    recurse(3)
    assert client.calls == [("acquire", "work")] * 3 + [("release", "work")] * 3


@pytest.mark.usefixtures("client")
def test_a_client_can_be_taken_back() -> None:
    configure(None)
    timer = expires(5)
    with pytest.raises(RuntimeError, match="Configure timer client"), timer:
        pytest.fail("there is no client")


def test_tasks_do_not_share_a_timer_nor_run_up_the_numbers(client: Recorder) -> None:
    async def work(step: int) -> None:
        async with deadline(5, "work"):
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        for _ in range(3):
            await asyncio.gather(*(work(step) for step in range(50)))

    asyncio.run(all_of_them())
    acquired = [name for what, name in client.calls if what == "acquire"]
    assert len(acquired) == 150
    assert set(acquired) == {"work", *(f"work ({number})" for number in range(2, 51))}


def test_a_decorated_function_has_a_timer_for_each_call(client: Recorder) -> None:
    @expires(after=5)
    def double(number: int) -> int:
        """Doubles."""
        assert client.calls[-1][0] == "acquire"
        return 2 * number

    start = sys._getframe().f_lineno - 6
    assert (double(2), double(3)) == (4, 6)
    assert client.calls == both(f"{__file__}#{start}") * 2
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")


def steps() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("thing", [int, classmethod(lambda _cls: None), 3, steps])
def test_what_is_no_function_cannot_be_decorated(thing: Any) -> None:
    with pytest.raises(TypeError, match="a timer decorates functions"):
        expires(5)(thing)


def test_a_coroutine_function_has_a_timer_while_it_runs(client: Recorder) -> None:
    @expires(5, "fetch")
    async def fetch() -> int:
        await asyncio.sleep(0)
        assert client.calls == [("acquire", "fetch")]
        return 3

    assert inspect.iscoroutinefunction(fetch)
    waiting = fetch()
    assert client.calls == []
    assert asyncio.run(waiting) == 3
    assert client.calls == both("fetch")


def test_a_fork_has_no_timers_of_its_parent(client: Recorder) -> None:
    read, write = os.pipe()
    with expires(5, "outer"):
        child = os.fork()
        if child == 0:
            with expires(5, "outer"):
                pass
    if child == 0:
        # Its parent's timer is not taken back, and its name was free.
        fine = client.calls == [("acquire", "outer"), *both("outer")]
        os.write(write, b"fine" if fine else repr(client.calls).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 1000)
    os.close(read)
    os.close(write)
    assert said == b"fine"
    assert client.calls == both("outer")
