"""``python -m lllaunch`` without the time that its imports take.

An interpreter that has imported what a launcher imports forks for each command. The fork gets the
command's arguments, directory, environment and output files, and runs what ``-m lllaunch`` runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

_PRELOADED = (
    *("hydra.main", "hydra._internal.utils", "hydra._internal.hydra"),
    *("hydra._internal.core_plugins", "hydra.core.override_parser.overrides_parser"),
    *("lllaunch.app.command", "lllaunch.run.execute"),
)
_WORD = 16  # bytes of a number on the socket
# what an interpreter reads when it starts
_READ_AT_START = ("PYTHON", "LANG", "LC_", "COVERAGE_PROCESS")


class Warm:
    """Such an interpreter; it ends with the process that has made it.

    Args:
        environ: its environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = _read_at_start(environ)
        self._socket, theirs = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
        code += "from support.warm import serve; del sys.path[0]; serve()"
        with theirs:
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                env=environ,
                cwd="/",
            )

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Whether an interpreter with another environment would start in the same way."""
        return _read_at_start(environ) == self._environ

    def run(
        self, args: Sequence[str], cwd: Path, environ: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m lllaunch ARGS``.

        Args:
            args: the rest of its command line.
            cwd: its working directory.
            environ: its whole environment; one that `fits`.
            seconds: the longest that it may take.

        Raises:
            TimeoutExpired: it took longer; it has been killed.
        """
        command = [sys.executable, "-m", "lllaunch", *args]
        request = json.dumps([command, str(cwd), dict(environ)]).encode("utf-8", "surrogateescape")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            size = b"%*d" % (_WORD, len(request))
            socket.send_fds(self._socket, [size], [out.fileno(), err.fileno()])
            self._socket.sendall(request)
            pid = self._number()
            late = not select.select([self._socket], [], [], seconds)[0]
            if late:
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(self._number())
            if late:
                raise subprocess.TimeoutExpired(command, seconds)
            return subprocess.CompletedProcess(command, code, _text_of(out), _text_of(err))

    def _number(self) -> int:
        word = self._socket.recv(_WORD, socket.MSG_WAITALL)
        assert len(word) == _WORD, "the warm interpreter has ended"
        return int(word)


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


def _text_of(file: Any) -> str:
    file.seek(0)
    text: str = file.read().decode()
    return text


def serve() -> NoReturn:
    """In the interpreter: run what is asked for, one command after the other."""
    for name in _PRELOADED:
        import_module(name)
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as requests:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        while True:
            size, streams, *_ = socket.recv_fds(requests, _WORD, 2)
            if not size:
                os._exit(0)
            request = requests.recv(int(size), socket.MSG_WAITALL)
            pid = os.fork()
            if pid == 0:
                requests.close()
                _become(*json.loads(request.decode("utf-8", "surrogateescape")), streams)
            for fd in streams:
                os.close(fd)
            requests.sendall(b"%*d" % (_WORD, pid))
            requests.sendall(b"%*d" % (_WORD, os.waitpid(pid, 0)[1]))


def _become(
    command: list[str], cwd: str, environ: dict[str, str], streams: Sequence[int]
) -> NoReturn:
    """In the fork: run a command as an interpreter of its own would."""
    code = 1
    try:
        for number, fd in enumerate(streams, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environ)
        time.tzset()
        os.chdir(cwd)
        sys.path[0:0] = [cwd]
        sys.argv = ["lllaunch", *command[3:]]
        sys.orig_argv = command
        runpy.run_module("lllaunch", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)
