"""Parts of the spawner, of its client and of its workers."""

from __future__ import annotations

import errno
import os
import signal
import time
import weakref
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from unittest.mock import Mock

import pytest

from lllaunch.app.planning import load
from lllaunch.errors import OutputError
from lllaunch.linux import proc
from lllaunch.linux.cgroup import _remove_left_behind
from lllaunch.linux.process import signal_group
from lllaunch.run.excerpts import find_return_value
from lllaunch.spawner import interpreter, orphans
from lllaunch.spawner.evidence import RETURN_FILE, save_return_value
from lllaunch.spawner.forks import fork
from lllaunch.spawner.interpreter import canary
from lllaunch.spawner.orphans import end_adopted, signal_process
from lllaunch.spawner.private_names import forget_finalizers_of
from lllaunch.testing import FakeClock

# More than any process id (PID_MAX_LIMIT).
NOBODY = 1 << 22


def test_rounds_of_killing_become_rare_while_nothing_new_appears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(100.0)
    monkeypatch.setattr(time, "monotonic", clock)
    me = proc.facts(os.getpid())
    assert me is not None
    monkeypatch.setattr(
        orphans, "kill_below", lambda pids, **_: [me._replace(pid=pid) for pid in pids]
    )
    cleanup = orphans.OrphanCleanup(settle=0.0)
    first = cleanup.next_in()
    assert not cleanup.go_on([1, 2])
    assert cleanup.next_in() == first
    waits = []
    for _ in range(10):
        clock.advance(cleanup.next_in())
        cleanup.go_on([2])
        waits.append(cleanup.next_in())
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == 1.0
    assert cleanup.stuck_for() == pytest.approx(clock.now - 100.0)
    cleanup.go_on([2, 3])
    assert cleanup.next_in() == first
    assert cleanup.stuck_for() == 0


def test_what_belongs_to_another_user_is_left_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    for module, name in ((signal, "pidfd_send_signal"), (os, "killpg"), (os, "kill")):
        monkeypatch.setattr(module, name, refuse)
    other = proc.facts(os.getpid())
    assert other is not None
    assert not signal_process(other, signal.SIGTERM)
    signal_group(other.pid, signal.SIGTERM)


def test_without_a_descriptor_nobody_takes_it_that_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    listdir = os.listdir

    def no_descriptor(path: str) -> list[str]:
        nonlocal looks
        looks += 1
        if looks <= 5:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", no_descriptor)
    end_adopted("0" * 32)
    # with two rounds that see that nothing is left
    assert looks == 7


def test_empty_cgroups_of_launchers_that_ended_are_removed(tmp_path: Path) -> None:
    dead, full = tmp_path / f"lllaunch-ab-{NOBODY}", tmp_path / f"lllaunch-cd-{NOBODY + 1}"
    living, other = tmp_path / f"lllaunch-ef-{os.getpid()}", tmp_path / f"other-ab-{NOBODY}"
    for directory in (dead, full, living, other):
        directory.mkdir()
    (full / "something").write_text("lives in it")
    _remove_left_behind(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (full, living, other)
    )


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


def function_of(module: str, done: list[str]) -> Callable[[], None]:
    def finish() -> None:
        done.append(module)

    finish.__module__ = module
    return finish


def test_only_what_torch_takes_apart_at_the_end_is_forgotten() -> None:
    class Kept:
        pass

    objects = [Kept(), Kept()]
    done: list[str] = []
    weakref.finalize(objects[0], function_of("torch.library", done))
    weakref.finalize(objects[1], function_of("users.module", done))
    forget_finalizers_of("torch.library")
    objects.clear()
    assert done == ["users.module"]


def test_a_canary_that_has_had_no_time_to_compute_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute() -> None:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass

    monkeypatch.setattr(interpreter, "_CANARY_SECONDS", 0.2)
    monkeypatch.setattr(interpreter, "_CANARY_CHANCES", 1000)
    # it has no time to
    monkeypatch.setattr(proc, "facts", lambda pid: Mock(state="R", cpu=0.0, pid=pid))
    monkeypatch.setattr(interpreter, "_compute", compute)
    assert canary()
    monkeypatch.undo()
    monkeypatch.setattr(interpreter, "_CANARY_SECONDS", 0.2)
    monkeypatch.setattr(interpreter, "_compute", lambda: time.sleep(1000))
    assert not canary()


def test_only_a_value_that_is_lost_makes_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    # nothing can be written there, as on a full disk
    monkeypatch.setenv(RETURN_FILE, str(tmp_path / "file/return.pkl"))
    save_return_value(None)
    with pytest.raises(OutputError, match="cannot be written"):
        save_return_value(5)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"loss": 0.5, "at": [1, None, True]}, {"return.json"}),
        # it would come back as another type
        (HTTPStatus.OK, {"return.json", "return.meta.json", "return.pkl"}),
        ((1, 2), {"return.meta.json", "return.pkl"}),
    ],
)
def test_a_value_that_json_holds_as_it_is_has_one_file(
    value: object, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETURN_FILE, str(tmp_path / "return.pkl"))
    save_return_value(value)
    assert {path.name for path in tmp_path.iterdir()} == names
    assert load(find_return_value(str(tmp_path))) == value
