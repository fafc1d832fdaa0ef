"""Which timers run and which are over; how far a FIFO has been read while others write into it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.timer.service import Backlog, TimerRegistry

WORKERS = st.sampled_from([1, 2, "three"])
SCOPES = st.sampled_from(["a", "b", "c"])
TIMES = st.integers(0, 30).map(float)
STEPS = st.one_of(
    st.tuples(st.just("acquire"), WORKERS, SCOPES, TIMES),
    st.tuples(st.just("release"), WORKERS, SCOPES),
    st.tuples(st.just("drop"), WORKERS),
    st.tuples(st.just("expire"), TIMES),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=80))
def test_it_does_what_a_plain_dictionary_would_do(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    registry: TimerRegistry[int] = TimerRegistry()
    model: dict[tuple[object, str], tuple[float, int]] = {}
    for number, (what, *args) in enumerate(steps):
        if what == "acquire":
            worker, scope, deadline = args
            registry.acquire(worker, scope, deadline, 0.0, number)
            model[worker, scope] = (deadline, number)
        elif what == "release":
            worker, scope = args
            registry.release(worker, scope)
            model.pop((worker, scope), None)
        elif what == "drop":
            registry.drop(args[0])
            model = {key: value for key, value in model.items() if key[0] != args[0]}
        else:
            over = {key: value for key, value in model.items() if value[0] <= args[0]}
            found = registry.take_expired(args[0])
            told = {
                (worker, timer.scope): (timer.deadline, timer.request)
                for worker, timers in found.items()
                for timer in timers
            }
            assert told == over
            for timers in found.values():
                deadlines = [timer.deadline for timer in timers]
                assert deadlines == sorted(deadlines)
            ended = {key[0] for key in over}
            model = {key: value for key, value in model.items() if key[0] not in ended}
        assert len(registry) == len(model)
        assert registry.next_deadline() == min((at for at, _ in model.values()), default=None)
        assert all(key in registry for key in model)
        for worker in (1, 2, "three"):
            assert registry.count(worker) == sum(key[0] == worker for key in model)


def test_pairs_without_end_take_no_room() -> None:
    registry: TimerRegistry[None] = TimerRegistry()
    registry.acquire(1, "stays", 1e9, 0.0, None)
    for number in range(20_000):
        registry.acquire(2, "pair", float(number), 0.0, None)
        registry.release(2, "pair")
    assert len(registry) == 1
    assert len(registry._heap) < 100
    assert registry.next_deadline() == 1e9


# How far a FIFO has been read

MOST = 10


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=60))
def test_nothing_that_was_written_until_then_is_left(steps: list[tuple[int, int]]) -> None:
    """Each step: so much is written before a reading, and so much during it."""
    backlog = Backlog()
    fifo: list[float] = []
    for number, (before, during) in enumerate(steps):
        fifo += [number - 0.5] * before
        taken, fifo = fifo[:MOST], fifo[MOST:]
        fifo += [number + 0.5] * during
        backlog.note(float(number), len(taken), len(fifo))
        assert backlog.behind == bool(fifo)
        assert all(written > backlog.until for written in fifo)
        assert backlog.until <= number


@given(st.lists(st.integers(0, 10), min_size=40, max_size=40))
def test_it_comes_after_however_much_is_written(writes: list[int]) -> None:
    backlog = Backlog()
    waiting = 100
    for number, written in enumerate(writes):
        got = min(MOST, waiting)
        waiting += written - got
        backlog.note(float(number), got, waiting)
    # It may lag behind by two rounds of 100 bytes.
    assert backlog.until >= len(writes) - 1 - 2 * 11
