"""The control socket of a run: what is asked, who may, and clients that do as they like."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT
from support.played import PlayedCollector, collecting

from lllaunch.linux.process import wait, wait_readable
from lllaunch.supervisor import control
from lllaunch.supervisor.control import (
    SOCKET,
    Request,
    RequestRefused,
    RunControl,
    RunMoment,
    ask,
)
from lllaunch.supervisor.machine import GroupState
from lllaunch.watchdog.evidence import Frame, RankStack


def connected(directory: Path, sent: bytes = b"") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(WAIT)
    fd = os.open(directory, os.O_PATH)
    client.connect(f"/proc/self/fd/{fd}/{SOCKET}")
    os.close(fd)
    if sent:
        client.sendall(sent)
    return client


def line_of(client: socket.socket) -> Any:
    with client, client.makefile("rb") as file:
        data = file.read()
    assert data.endswith(b"\n")
    return json.loads(data)


def test_what_a_killed_launcher_has_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET))
    server = RunControl(str(tmp_path))
    connected(tmp_path).close()
    # one that came in its place is not removed with it
    (tmp_path / SOCKET).unlink()
    (tmp_path / SOCKET).touch()
    server.close()
    assert (tmp_path / SOCKET).exists()
    server.close()


def test_who_listens_is_whose_run_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_peer", lambda _: (os.getpid(), os.geteuid() + 7))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen(1)
        with pytest.raises(PermissionError, match="somebody else"):
            ask(str(tmp_path), Request())


@pytest.mark.parametrize(
    ("answer", "raised", "text"),
    [
        (b"", ConnectionResetError, "closed the connection"),
        (b"\xff\n", ValueError, "malformed"),
        (b"[" * 100_000 + b"\n", ValueError, "expected object, got array"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", ValueError, "nested too deeply"),
        (b'{"version": 9}\n', RequestRefused, "version 9"),
        (b'{"version": 1, "error": {"code": "busy", "text": "no"}}\n', RequestRefused, "busy: no"),
    ],
)
def test_what_is_no_answer(
    tmp_path: Path, answer: bytes, raised: type[Exception], text: str
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen(1)

        def reply() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(raised, match=text):
            ask(str(tmp_path), Request(), WAIT)
        thread.join(WAIT)


# What a run answers while there is no worker, or the watchdog is at work


def view(state: GroupState = GroupState.RUNNING, **more: Any) -> RunMoment:
    given = {"alive": frozenset(), "pids": {}, "parent": 0, "busy": False, **more}
    return RunMoment(state=state, attempt=2, nproc=2, base_rank=4, **given)


def turns(run: RunControl, seen: RunMoment, until: Callable[[], bool]) -> list[object]:
    found: list[object] = []
    while True:
        found += run.turn(lambda: seen)
        if until():
            # what was answered may be told after its answer
            return found + run.turn(lambda: seen)
        wait(run.files(), seconds=0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunControl]:
    made = RunControl(str(tmp_path), lambda text: text.replace("hunter2", "****"))
    yield made
    made.close()


def test_without_live_workers_the_answer_says_so(run: RunControl, tmp_path: Path) -> None:
    peer = connected(tmp_path, Request().to_json())
    noted = turns(run, view(GroupState.PAUSED), lambda: wait_readable(peer, 0))
    answer = line_of(peer)
    assert (answer["state"], answer["text"]) == ("PAUSED", "a restart is waited for")
    assert (answer["attempt"], answer["world_size"], answer["nodes"]) == (2, 2, [])
    ranks = [(each["rank"], each["status"]) for each in answer["ranks"]]
    assert ranks == [(4, "ended"), (5, "ended")]
    assert noted == [control.StacksAnswered((4, 5), os.getpid(), os.geteuid())]
    peer = connected(tmp_path, Request(frozenset({5})).to_json())
    turns(run, view(alive=frozenset({0, 1})), lambda: wait_readable(peer, 0))
    assert [(each["rank"], each["status"]) for each in line_of(peer)["ranks"]] == [(5, "starting")]


def test_the_watchdog_goes_first_but_not_for_ever(
    run: RunControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_BUSY_SECONDS", 0.3)
    peer = connected(tmp_path, Request().to_json())
    busy = view(busy=True)
    assert turns(run, busy, lambda: run._wanted is not None) == []
    assert run.turn(lambda: busy) == []
    assert not wait_readable(peer, 0)
    turns(run, busy, lambda: wait_readable(peer, 0))
    assert line_of(peer)["error"]["code"] == "busy"


def closed() -> int:
    return sum(each.fd < 0 for each in PlayedCollector.made)


WORKING = view(alive=frozenset({0, 1}), pids={0: 100, 1: 101}, parent=1)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    collecting(monkeypatch)
    return monkeypatch


def test_who_gives_way_begins_anew_and_secrets_are_hidden(
    run: RunControl, tmp_path: Path, collected: pytest.MonkeyPatch
) -> None:
    collected.setattr(PlayedCollector, "done", False)
    peer = connected(tmp_path, Request().to_json())
    turns(run, WORKING, lambda: run._look is not None)
    run.give_way()
    turns(run, view(busy=True), lambda: run._wanted is not None)
    assert closed() == 1
    collected.setattr(PlayedCollector, "done", True)
    turns(run, WORKING, lambda: wait_readable(peer, 0))
    answer = line_of(peer)
    assert closed() == 2
    assert [each["pid"] for each in answer["ranks"]] == [100, 101]
    assert answer["ranks"][0]["frames"] == [
        {"file": "/t.py", "line": 3, "function": "step", "code": "login('****')"}
    ]


def test_who_waits_when_the_run_ends_is_told(run: RunControl, tmp_path: Path) -> None:
    peer = connected(tmp_path, Request().to_json())
    turns(run, view(busy=True), lambda: run._wanted is not None)
    run.close()
    assert line_of(peer)["error"] == {"code": "over", "text": "the run is ending"}


@pytest.mark.usefixtures("collected")
def test_all_who_ask_are_answered_one_after_the_other(run: RunControl, tmp_path: Path) -> None:
    peers = [connected(tmp_path, Request().to_json()) for _ in range(3)]
    other = connected(tmp_path, Request(frozenset({4})).to_json())
    everyone = (*peers, other)
    found = turns(run, WORKING, lambda: all(wait_readable(each, 0) for each in everyone))
    assert closed() == 4
    assert [each.ranks for each in found] == [(4, 5), (4, 5), (4, 5), (4,)]
    assert [len(line_of(peer)["ranks"]) for peer in everyone] == [2, 2, 2, 1]


# Clients that do as they like


def settle(run: RunControl) -> None:
    """Let it come to rest: it asks for nothing, and wakes nobody any more."""
    while wait(run.files(), seconds=0.1):
        assert run.turn(lambda: WORKING) == []


def test_in_directories_of_any_length_only_the_user_may_connect(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["a directory with a long name" * 3] * 4)
    directory.mkdir(parents=True)
    run = RunControl(str(directory))
    mode = (directory / SOCKET).stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    peer = connected(directory, Request().to_json())
    turns(run, view(), lambda: wait_readable(peer, 0))
    assert line_of(peer)["attempt"] == 2
    run.close()
    assert not (directory / SOCKET).exists()


def test_a_request_may_come_in_pieces_and_end_what_is_written(
    run: RunControl, tmp_path: Path
) -> None:
    line = Request().to_json()
    peer = connected(tmp_path, line[:7])
    turns(run, view(), lambda: run._serving)
    peer.sendall(line[7:])
    peer.shutdown(socket.SHUT_WR)
    # it waits until the watchdog is done, and wakes nobody meanwhile
    turns(run, view(busy=True), lambda: run._wanted is not None)
    while wait(run.files(), seconds=0.1):
        assert run.turn(lambda: view(busy=True)) == []
    turns(run, view(), lambda: wait_readable(peer, 0))
    assert line_of(peer)["attempt"] == 2


@pytest.mark.usefixtures("collected")
def test_an_answer_that_is_longer_than_what_the_kernel_keeps(
    run: RunControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 3_000_000
    frames = (Frame("/t.py", 3, "step", text),)
    monkeypatch.setattr(PlayedCollector, "result", lambda _: (RankStack(0, frames=frames),))
    peer = connected(tmp_path, Request().to_json())
    turns(run, WORKING, lambda: wait_readable(peer, 0))
    assert line_of(peer)["ranks"][0]["frames"][0]["code"] == text
    turns(run, WORKING, lambda: not run._serving)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x00\xff\n", "request"),
        (b"x" * 70_000, "request"),
        (b"[" * 4000 + b"\n", "request"),
        (b'{"ask": 1}\n', "request"),
        (b'{"version": 2, "ask": "stacks"}\n', "version"),
        (b'{"version": 1, "ask": "shutdown"}\n', "request"),
        (b'{"version": 1, "ask": "stacks", "ranks": [-1]}\n', "request"),
        (b'{"version": 1, "ask": "stacks", "threads": 1}\n', "request"),
    ],
)
def test_what_is_no_request_is_answered_with_an_error(
    run: RunControl, tmp_path: Path, sent: bytes, code: str
) -> None:
    peer = connected(tmp_path, sent)
    assert turns(run, WORKING, lambda: not run._serving and wait_readable(peer, 0)) == []
    error = line_of(peer)["error"]
    assert error["code"] == code
    assert error["text"]


def test_who_hangs_up_is_forgotten(run: RunControl, tmp_path: Path) -> None:
    early = connected(tmp_path)
    late = connected(tmp_path, Request().to_json())
    early.close()
    turns(run, view(busy=True), lambda: run._wanted is not None)
    late.close()
    # its answer goes nowhere
    turns(run, view(), lambda: not run._serving)
    settle(run)


def test_who_says_nothing_is_hung_up_on_in_time(
    run: RunControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_REQUEST_SECONDS", 0.1)
    peer = connected(tmp_path, b"{")
    turns(run, WORKING, lambda: run._serving)
    assert turns(run, WORKING, lambda: not run._serving) == []
    assert peer.recv(1) == b""
    peer.close()


def test_another_user_is_refused(
    run: RunControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(control.os, "geteuid", lambda: mine + 1)
    monkeypatch.setattr(control, "_ROOT", mine + 2)
    peer = connected(tmp_path, Request().to_json())
    assert turns(run, WORKING, lambda: not run._serving and wait_readable(peer, 0)) == []
    assert line_of(peer)["error"]["code"] == "permission"
