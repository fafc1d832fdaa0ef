"""Addresses of sockets that are far down."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lllaunch.linux.process import short_address

# Of an address on Linux, bytes.
MOST = 107


def test_a_socket_far_down_can_be_made_and_found(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    path = str(directory / "a.sock")
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(OSError, match="too long"):
            listener.bind(path)
        with short_address(path) as address:
            assert len(address) <= MOST
            listener.bind(address)
        listener.listen()
        with short_address(path) as address:
            client.connect(address)
    assert os.path.exists(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_of_a_directory_that_is_not_there_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), short_address(str(tmp_path / "no" / "a.sock")):
        pass
