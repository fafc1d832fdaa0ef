"""Which timers run and which are over, against a model that is slow and simple."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.timer.service import TimerRegistry

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


def test_what_is_over_can_be_seen_without_taking_it_back() -> None:
    registry: TimerRegistry[str] = TimerRegistry()
    registry.acquire(1, "a", 5.0, 1.0, "request")
    assert registry.over(4.9) == {}
    for _ in range(2):
        (timer,) = registry.over(5.0)[1]
        assert (timer.scope, timer.since, timer.request) == ("a", 1.0, "request")


def test_pairs_without_end_take_no_room() -> None:
    registry: TimerRegistry[None] = TimerRegistry()
    registry.acquire(1, "stays", 1e9, 0.0, None)
    for number in range(20_000):
        registry.acquire(2, "pair", float(number), 0.0, None)
        registry.release(2, "pair")
    assert len(registry) == 1
    assert len(registry._heap) < 100
    assert registry.next_deadline() == 1e9
