"""Jobs of sweeps that share warm spawners: what they share, what they do not, and who ends what."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from support.contexts import TargetContext
from support.launching import WAIT, gone, text_of
from support.sweeps import Execute, Played, machine

import lllaunch.sweep.schedule as v
from lllaunch.errors import PreloadFailed
from lllaunch.events import PreloadBroken, Ready, SpawnerGone
from lllaunch.multiprocessing.api import DefaultLogsSpecs
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import Script
from lllaunch.spec import Std
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.processes import SpawnerPool
from lllaunch.sweep.protocol import Answer, Prepared, SpawnerKey

# Says what it sees; the module `slow` says who imports it, and waits while there is a file `hold`.
WORK = """
import os, slow
print(os.environ.get("OMP_NUM_THREADS", "unset"))
"""
SLOW = """
import os, time
with open("imports", "a") as file: file.write(f"{os.getpid()}\\n")
while os.path.exists("hold"): time.sleep(0.01)
if os.path.exists("broken"): raise ImportError("cannot be imported")
"""


class Warmed(Played):
    """A sweep whose jobs start a worker each, as a configured run does."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        for name, text in (("work", WORK), ("slow", SLOW)):
            (place / f"{name}.py").write_text(text)
        self.warm: SpawnerPool | None = None

    def pool(self, limit: int = 4, prestarted: Spawner | None = None) -> SpawnerPool:
        self.warm = SpawnerPool(os.environ, limit, prestarted)
        return self.warm

    def close(self) -> None:
        if self.warm is not None:
            self.warm.close()
        super().close()

    def succeed(
        self,
        numbers: int | list[int],
        threads: Callable[[int], int] | None = None,
        **fields: object,
    ) -> SpawnerPool:
        """Runs jobs, of which none may fail, with the pool that there is."""
        warm = self.warm or self.pool()
        finish = self.sweep(numbers, self.jobs(threads, **fields), self.work(), warm=warm)
        assert finish.exit_code == 0
        return warm

    def jobs(
        self, threads: Callable[[int], int] | None = None, **fields: object
    ) -> Callable[[int], Answer]:
        """Jobs, of which each may have an environment of its own."""

        def prepare(number: int) -> Answer:
            env = {"OMP_NUM_THREADS": str(threads(number))} if threads else {}
            key = SpawnerKey.of(["slow"], str(self.place), os.environ | env, os.environ)
            return structs.replace(
                Prepared(number, Need(1), warm=key, payload=(number, env)), **fields
            )

        return prepare

    def work(self, script: str = "work.py") -> Execute:
        """Runs a script in a worker; says how the job came to its spawner."""

        def execute(job: Prepared, _lease: Lease, spawner: Spawner | None) -> int:
            assert isinstance(job.payload, tuple)
            number, env = job.payload
            (self.place / f"{number}.kind").write_text("cold" if spawner is None else "warm")
            given = "" if spawner is None else spawner.mark
            logs = DefaultLogsSpecs(log_dir=str(self.place / f"job{number}"), redirects=Std.ALL)
            context = TargetContext(
                "job",
                {0: Script(str(self.place / script))},
                {0: env},
                logs,
                spawner=spawner,
                preload=["slow"],
                cwd=str(self.place),
            )
            context.start()
            (self.place / f"{number}.out").symlink_to(context.stdouts[0])
            result = context.wait()
            assert result is not None
            if spawner is not None and spawner.mark != given:
                return 90
            return 1 if result.is_failed() else 0

        return execute

    def kinds(self) -> list[str]:
        return [text_of(path) for path in sorted(self.place.glob("*.kind"))]

    def imports(self) -> list[int]:
        return [int(word) for word in text_of(self.place / "imports").split()]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warmed]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = Warmed(tmp_path)
    yield found
    found.close()


def stop_when(path: Path) -> subprocess.Popen[bytes]:
    """Another process, which ends the sweep when something stands in a file."""
    script = f"until [ -s '{path}' ]; do sleep 0.01; done; kill {os.getpid()}"
    return subprocess.Popen(["sh", "-c", script])


def test_jobs_of_one_environment_share_a_spawner_also_in_the_next_sweep(played: Warmed) -> None:
    (spawner,) = played.succeed(3).spawners()
    warm = played.succeed([3])
    assert played.kinds() == ["warm"] * 4
    assert played.imports() == [spawner.pid]
    assert len(played.of(Ready)) == 1
    warm.close()
    assert gone(spawner.pid)


def test_above_the_limit_jobs_run_cold(played: Warmed) -> None:
    played.machine = machine(1)
    played.pool(limit=1)
    warm = played.succeed(4, lambda number: 1 + number % 2)
    assert played.kinds() == ["warm", "cold", "warm", "cold"]
    assert len(warm.spawners()) == 1


@pytest.mark.parametrize("needed", [True, False])
def test_one_that_was_started_before_is_the_first_and_ends_with_the_others(
    played: Warmed, needed: bool
) -> None:
    early = Spawner.prestart()
    warm, pid = played.pool(prestarted=early), early.pid
    played.succeed(2, **({} if needed else {"warm": None}))
    assert played.kinds() == (["warm"] * 2 if needed else ["cold"] * 2)
    assert warm.spawners() == ([early] if needed else [])
    assert not gone(pid)
    warm.close()
    assert gone(pid)


def test_what_cannot_be_preloaded_is_the_matter_of_the_jobs(played: Warmed) -> None:
    played.mark("broken")
    warm = played.pool()

    def execute(job: Prepared, lease: Lease, spawner: Spawner | None) -> int:
        with pytest.raises(PreloadFailed, match="cannot be imported"):
            played.work()(job, lease, spawner)
        return 0

    finish = played.sweep(3, played.jobs(), execute, warm=warm)
    assert finish == v.FinishSweep(0)
    assert played.kinds() == ["cold"] * 3
    (told,) = played.of(PreloadBroken)
    assert (told.module, told.reason) == ("slow", "ImportError: cannot be imported")
    assert warm.pids() == frozenset()


def test_jobs_whose_spawner_is_killed_run_cold(played: Warmed) -> None:
    played.machine = machine(1)
    (spawner,) = played.succeed([8]).spawners()
    os.kill(spawner.pid, signal.SIGKILL)
    warm = played.succeed(2)
    assert played.kinds() == ["cold"] * 2 + ["warm"]
    assert len(played.of(SpawnerGone)) == 1
    assert warm.spawners() == []


def test_a_signal_ends_a_job_that_waits_for_its_preloads(played: Warmed) -> None:
    played.mark("hold")
    warm = played.pool()
    helper: list[subprocess.Popen[bytes]] = []

    def react(what: object) -> None:
        # not before both have their leases
        if isinstance(what, v.StartJob) and what.number == 1:
            helper.append(stop_when(played.place / "imports"))

    played.react = react
    finish = played.sweep(5, played.jobs(), played.work(), warm=warm)
    assert helper[0].wait(WAIT) == 0
    assert finish.exit_code == 143
    assert played.counts()["cancelled"] == 2
    assert len(played.of(v.SignalJobs)) == 1
    assert played.kinds() == []


def test_a_job_does_not_wait_longer_than_it_wants_to(played: Warmed) -> None:
    played.machine = machine(1)
    played.mark("hold")
    warm = played.pool()

    def cold(_job: Prepared, _lease: Lease, spawner: Spawner | None) -> int:
        return 0 if spawner is None else 1

    finish = played.sweep(2, played.jobs(patience=0.05), cold, warm=warm)
    assert finish == v.FinishSweep(0)
    assert len(warm.spawners()) == 1
    (played.place / "hold").unlink()
    played.succeed([2])
    assert played.kinds() == ["warm"]
