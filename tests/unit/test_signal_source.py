"""Signals to a process that manages workers: noted for an event loop, or raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from lllaunch.linux.process import wait_readable
from lllaunch.signal_source import SignalException, SignalSource

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture
def came() -> Iterator[list[int]]:
    """What came to the handlers that were there before."""
    found: list[int] = []
    before = {
        signum: signal.signal(signum, lambda n, _: found.append(n)) for signum in (USR1, USR2)
    }
    yield found
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_signals_are_noted_in_order(came: list[int]) -> None:
    with SignalSource([USR1, USR2]) as source:
        signal.raise_signal(USR2)
        signal.raise_signal(USR1)
        assert wait_readable(source, 0)
        assert source.received() == [USR2, USR1]
        assert not wait_readable(source, 0)
        assert source.received() == []
    assert came == []


@pytest.mark.parametrize("told", [False, True])
def test_a_signal_comes_again_where_nobody_was_told_of_any(came: list[int], told: bool) -> None:
    with SignalSource([USR1]) as source:
        if told:
            signal.raise_signal(USR1)
            source.received()
        signal.raise_signal(USR1)
        assert came == []
    assert came == ([] if told else [USR1])


def test_while_nothing_else_wakes_they_raise(came: list[int]) -> None:
    with SignalSource([USR1]) as source:
        with pytest.raises(SignalException) as caught, source.raising():
            signal.raise_signal(USR1)
        assert caught.value.sigval is USR1
        signal.raise_signal(USR1)
        assert source.received() == [USR1]
    assert came == []


def test_signals_that_cannot_be_handled_are_left_and_nothing_stays_installed(
    monkeypatch: pytest.MonkeyPatch, came: list[int]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGKILL,SIGUSR1,SIGSTOP")
    before = signal.getsignal(USR1)
    descriptors = set(os.listdir("/proc/self/fd"))
    with SignalSource() as source:
        signal.raise_signal(USR1)
        assert source.received() == [USR1]
    assert signal.getsignal(USR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_what_is_ignored_stays_so_but_for_what_announces_the_end(came: list[int]) -> None:
    for signum in (USR1, USR2):
        signal.signal(signum, signal.SIG_IGN)
    with SignalSource([USR1], notice=USR2) as source:
        signal.raise_signal(USR1)
        signal.raise_signal(USR2)
        assert source.received() == [signal.SIGTERM]
    assert signal.getsignal(USR2) is signal.SIG_IGN
    assert came == []


def test_ctrl_z_is_noted_where_others_raise_and_is_no_reason_to_end(came: list[int]) -> None:
    with SignalSource([USR1], stops=True) as source:
        with source.raising():
            signal.raise_signal(signal.SIGTSTP)
        assert wait_readable(source, 0)
        assert (source.received(), source.stopping) == ([], True)
        source.stopping = False
        signal.raise_signal(USR1)
    assert came == [USR1]


def test_in_a_job_of_a_sweep_the_first_signal_may_come_twice(
    monkeypatch: pytest.MonkeyPatch, came: list[int]
) -> None:
    # Slurm has sent it to the whole step, and the sweep's launcher forwards it
    monkeypatch.setattr(SignalSource, "twice", True)
    with SignalSource([USR1], quiet=[USR2]) as source:
        for signum in (USR2, USR1, USR2, USR1):
            signal.raise_signal(signum)
        assert source.received() == [USR2, USR1, USR2]
        signal.raise_signal(USR1)
        assert source.received() == [USR1]
    assert came == []


@pytest.fixture
def terminations() -> Iterator[list[int]]:
    """What came of SIGTERM to the handler that was there before."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda n, _: found.append(n))
    yield found
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("sent", "announced"),
    [
        ([USR2, signal.SIGTERM], USR2),
        ([signal.SIGTERM, USR2, signal.SIGTERM, USR2], signal.SIGTERM),
    ],
)
@pytest.mark.parametrize("signals", [(USR1,), (USR1, signal.SIGTERM)])
def test_all_that_announces_the_end_is_one_signal(
    sent: list[signal.Signals],
    announced: signal.Signals,
    signals: tuple[signal.Signals, ...],
    came: list[int],
    terminations: list[int],
) -> None:
    heard: list[int] = []
    with SignalSource(signals, notice=USR2, noticed=heard.append) as source:
        assert source.announced is None
        for signum in sent:
            signal.raise_signal(signum)
        signal.raise_signal(USR1)
        assert source.received() == [signal.SIGTERM, USR1]
        assert source.announced == announced
    assert heard == [announced]
    assert (came, terminations) == ([], [])
