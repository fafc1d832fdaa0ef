"""The program git, asked by a launcher that has better things to do than to wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from lllaunch.linux.process import open_pidfd, wait_pidfd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KILLED_WITHIN = 1.0  # seconds
_MOST = 16 * 1024 * 1024  # bytes of an answer
# Nothing of the repository's is to be run, and nothing to be written in it.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# They speak of another tree than that of the directory, as in a hook; or write traces.
_DROPPED = {
    f"GIT_{name}"
    for name in (
        "DIR",
        "WORK_TREE",
        "INDEX_FILE",
        "PREFIX",
        "COMMON_DIR",
        "NAMESPACE",
        "OBJECT_DIRECTORY",
        "ALTERNATE_OBJECT_DIRECTORIES",
        "IMPLICIT_WORK_TREE",
        "GRAFT_FILE",
        "SHALLOW_FILE",
    )
}
_SET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}


class Git:
    """A git that runs, in a session of its own so that no signal of the terminal reaches it.

    Args:
        cwd: where.
        arguments: what it is asked.
        environ: of the user; what would lead it elsewhere is left out.

    Raises:
        OSError: it cannot be started; FileNotFoundError: it is not installed.
    """

    def __init__(self, cwd: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        program = _which("git", environ)
        if program is None:
            raise FileNotFoundError("git")
        command = [program, "-C", cwd, *_QUIET, *arguments]
        # a launcher that is killed takes it along
        setpriv = _which("setpriv", environ)
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        # files rather than pipes: it need not wait for anybody who reads
        self._files = [os.memfd_create("git", os.MFD_CLOEXEC) for _ in range(2)]
        self._pidfd: int | None = None
        try:
            # not subprocess: its import takes longer than all of this
            self._pid = os.posix_spawn(
                command[0],
                command,
                _environment(environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._files[0], 1),
                    (os.POSIX_SPAWN_DUP2, self._files[1], 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT),
            )
        except BaseException:
            self._close()
            raise
        with contextlib.suppress(OSError):
            self._pidfd = open_pidfd(self._pid)

    def end(self, timeout: float) -> tuple[str, str] | None:
        """Waits for it, then kills it and what it started; to be called once.

        Returns:
            what it wrote to standard output and standard error, None if it did not end in time.
        """
        ended = self._wait(timeout)
        if not ended:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            self._wait(_KILLED_WITHIN)  # if it hangs in the kernel, it is left to that
        with contextlib.suppress(ChildProcessError):  # of a process that this one was forked from
            os.waitpid(self._pid, os.WNOHANG)
        told = [os.pread(fd, _MOST, 0).decode(errors="surrogateescape") for fd in self._files]
        self._close()
        return (told[0], told[1]) if ended else None

    def _wait(self, seconds: float) -> bool:
        if self._pidfd is None:
            return False
        return wait_pidfd(self._pidfd, seconds)

    def _close(self) -> None:
        for fd in (*self._files, self._pidfd):
            if fd is not None:
                os.close(fd)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _DROPPED and not name.startswith("GIT_TRACE")
    }
    return {**kept, **_SET}


def _which(program: str, environ: Mapping[str, str]) -> str | None:
    for directory in os.get_exec_path(environ):
        path = os.path.join(directory, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    return None
