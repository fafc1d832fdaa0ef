"""Messages between launcher and spawner."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.spawner.protocol import (
    MAX_FDS,
    Channel,
    Message,
    connected,
)

# also what is no UTF-8, as an environment may hold it
TEXT = st.text(st.characters(codec=None), max_size=20)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, two = (Channel(sock) for sock in connected())
    yield one, two
    one.close()
    two.close()


@contextlib.contextmanager
def no_room_for_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pump(sender: Channel, receiver: Channel) -> list[Message]:
    found = receiver.receive()
    while sender.pending:
        sender.flush()
        found += receiver.receive()
    return found


@given(st.lists(st.tuples(TEXT, st.binary(max_size=100)), max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[tuple[str, bytes]]) -> None:
    one, two = (Channel(sock) for sock in connected())
    for text, payload in messages:
        one.queue({"text": text, "payload": payload})
    found = pump(one, two)
    one.close()
    two.close()
    assert [(message.header["text"], message.header["payload"]) for message in found] == messages


def test_descriptors_arrive_with_their_message_however_large(ends: tuple[Channel, Channel]) -> None:
    one, two = ends
    pipes = [os.pipe() for _ in range(3)]
    open_now = len(os.listdir("/proc/self/fd"))
    one.queue({"n": 0, "text": "x" * (1 << 20)})
    payload = os.urandom(5 << 20)
    one.queue({"n": 1, "payload": payload}, fds=(pipes[0][0], pipes[1][0]))
    one.queue({"n": 2}, fds=(pipes[2][0],), close_fds=True)
    found = pump(one, two)
    # but for the three that came, and the one that went
    assert len(os.listdir("/proc/self/fd")) == open_now + 2
    assert [len(message.fds) for message in found] == [0, 2, 1]
    assert [message.header["n"] for message in found] == [0, 1, 2]
    assert found[1].header["payload"] == payload
    for (read, write), fd in zip(pipes, found[1].fds + found[2].fds, strict=True):
        os.write(write, b"hello")
        assert os.read(fd, 10) == b"hello"
        assert not os.get_inheritable(fd)
        os.close(fd)
        os.close(write)
        if read != pipes[2][0]:
            os.close(read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipes[2][0])


def test_a_message_has_room_for_many_descriptors(ends: tuple[Channel, Channel]) -> None:
    one, two = ends
    fds = tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(MAX_FDS))
    payload = b"x" * 100_000
    one.queue({"n": 1, "payload": payload}, fds, close_fds=True)
    (many,) = pump(one, two)
    assert (len(many.fds), many.header["payload"]) == (len(fds), payload)
    for fd in many.fds:
        os.close(fd)
    with pytest.raises(ValueError, match="too many"):
        one.queue({}, fds=tuple(range(MAX_FDS + 1)))


def test_both_sides_learn_that_the_other_is_gone_and_still_receive_what_it_has_sent(
    ends: tuple[Channel, Channel],
) -> None:
    launcher, spawner = ends
    spawner.queue({"fact": "exited"})
    spawner.close()
    launcher.queue({"op": "signal"})
    assert not launcher.pending
    assert [message.header for message in launcher.receive()] == [{"fact": "exited"}]
    assert launcher.closed
    launcher.queue({"n": 1})


def test_descriptors_for_which_there_is_no_room_are_not_taken_from_the_next_message(
    ends: tuple[Channel, Channel],
) -> None:
    one, two = ends
    (read, write), (other, unused) = os.pipe(), os.pipe()
    try:
        with no_room_for_descriptors():
            one.queue({"n": 1}, fds=(other, unused))
            (poor,) = two.receive()
        one.queue({"n": 2}, fds=(read,))
        (rich,) = two.receive()
        assert (poor.fds, poor.lost) == ([], 2)
        assert (len(rich.fds), rich.lost) == (1, 0)
        os.write(write, b"second")
        assert os.read(rich.fds[0], 10) == b"second"
        os.close(rich.fds[0])
    finally:
        for fd in (read, write, other, unused):
            os.close(fd)
