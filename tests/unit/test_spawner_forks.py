from __future__ import annotations

import os
import signal

import pytest

from lllaunch.spawner.forks import flush_streams, fork


def blocked() -> set[int]:
    return {int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def test_signals_are_blocked_in_the_child_alone() -> None:
    before = blocked()
    pid = fork()
    if pid == 0:
        os._exit(7 if {signal.SIGTERM, signal.SIGINT} <= blocked() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert blocked() == before


def test_where_no_process_can_be_made_they_are_not_left_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    before = blocked()
    with pytest.raises(BlockingIOError):
        fork()
    assert blocked() == before


def test_streams_that_are_gone_are_flushed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w", encoding="utf-8") as closed:
        pass
    monkeypatch.setattr("sys.stdout", closed)
    monkeypatch.setattr("sys.stderr", None)
    flush_streams()
