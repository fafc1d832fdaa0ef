"""Which failure came first and what became of every worker: `judge_attempt` on made-up records."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import (
    Exited,
    GroupEnd,
    NoProgress,
    PreloadBroken,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.linux.cgroup import Memory
from lllaunch.run.causes import (
    CalledExit,
    DeviceOutOfMemory,
    ExitedNonZero,
    KilledBySignal,
    NotPicklableReturn,
    OutOfMemory,
    PreflightFailure,
    PreloadFailure,
    Raised,
    SpawnerLost,
    StartFailure,
)
from lllaunch.run.judge import judge_attempt, was_out_of_memory
from lllaunch.run.outcome import Ended, Failed, Lost, NotStarted, Succeeded, Victim, summarize
from lllaunch.run.records import (
    AttemptRecord,
    ExitCall,
    PreflightRecord,
    SentSignal,
    WorkerError,
    WorkerRecord,
)

S = 1_000_000_000
T0 = 1_700_000_000 * S


def worker(rank: int, exitcode: int | None = None, at: float = 1.0, **more) -> WorkerRecord:
    """A worker that was started at 0 s and, if it has an exit code, ended ``at`` seconds later."""
    exited = None
    if exitcode is not None:
        exited = Exited(rank, 100 + rank, exitcode, T0 + int(at * S), max_rss=5 << 20)
    return WorkerRecord(rank, rank, started=Started(rank, 100 + rank, T0), exited=exited, **more)


def sent(signum: int, at: float) -> SentSignal:
    return SentSignal(signum, T0 + int(at * S))


def error(message: str, at: float | None = None) -> WorkerError:
    return WorkerError(message, f"Traceback\n{message}", None if at is None else T0 + int(at * S))


def attempt(*workers: WorkerRecord, **more) -> AttemptRecord:
    return AttemptRecord(0, 0, "/run/attempt_0", T0, T0 + 9 * S, tuple(workers), **more)


def fates(*workers: WorkerRecord, **more):
    return [each.fate for each in judge_attempt(attempt(*workers, **more)).workers]


def test_all_succeeded():
    found = judge_attempt(attempt(worker(0, 0), worker(1, 0)))
    assert found.state == "succeeded"
    assert found.root_cause is None
    assert [each.fate for each in found.workers] == [Succeeded(), Succeeded()]
    assert found.workers[1].pid == 101


def test_first_exit_in_time_is_the_root_cause():
    found = judge_attempt(attempt(worker(0, 1, at=2.000_000_3), worker(1, 7, at=2.000_000_2)))
    assert found.state == "failed"
    assert found.root_cause.rank == 1
    assert found.root_cause.cause == ExitedNonZero(7)
    assert found.workers[0].fate == Victim(ExitedNonZero(1), T0 + 2 * S + 300, 100)


def test_time_of_the_exception_counts_before_that_of_the_exit():
    # rank 0 raised first but took a second to clean up
    slow = worker(0, 1, at=3.0, error=error("ValueError: bad", at=1.0))
    found = judge_attempt(attempt(slow, worker(1, 1, at=1.5)))
    assert found.root_cause.rank == 0
    assert found.root_cause.cause == Raised("ValueError: bad", 1)
    assert found.root_cause.traceback == "Traceback\nValueError: bad"


def test_exception_dated_before_the_start_or_after_the_end_is_dated_by_the_exit():
    early = worker(0, 1, at=3.0, error=error("ValueError: old file", at=-5.0))
    late = worker(1, 1, at=2.0, error=error("ValueError: clock", at=50.0))
    assert judge_attempt(attempt(early, late)).root_cause.rank == 1


def test_worker_ended_by_the_launcher_is_no_victim():
    others = [
        worker(1, -signal.SIGTERM, at=1.1, sent=(sent(15, 1.05),)),
        worker(2, -signal.SIGKILL, at=31.0, sent=(sent(15, 1.05), sent(9, 31.0))),
        worker(3, 1, at=1.2, sent=(sent(15, 1.05),)),
        worker(4, 0, at=1.2, sent=(sent(15, 1.05),)),
        worker(5, 1, at=1.2, sent=(sent(15, 1.05),), error=error("KeyboardInterrupt", at=1.1)),
    ]
    assert fates(worker(0, 1), *others)[1:] == [
        Ended(15, -15, (15,)),
        Ended(9, -9, (15, 9)),
        Ended(15, 1, (15,)),
        Ended(15, 0, (15,)),
        Ended(15, 1, (15,)),
    ]


def test_who_called_exit_where_the_first_did_before_he_noticed_the_signal_failed_alike():
    here, elsewhere = ExitCall(3, "s.py", 7, "main"), ExitCall(3, "s.py", 2, "on_sigterm")
    others = [
        worker(1, 3, at=1.2, sent=(sent(15, 1.05),), exit_call=here),
        worker(2, 3, at=1.2, sent=(sent(15, 1.05),), exit_call=elsewhere),
        worker(3, 3, at=1.2, sent=(sent(15, 1.05),)),
    ]
    cause = CalledExit(3, "3", "s.py", 7, "main")
    assert fates(worker(0, 3, exit_call=here), *others) == [
        Failed(cause, T0 + S),
        Victim(cause, T0 + int(1.2 * S), int(1.2 * S) - S),
        Ended(15, 3, (15,)),
        Ended(15, 3, (15,)),
    ]


def test_worker_that_raised_before_it_was_signalled_failed_by_itself():
    late = worker(
        1, -9, at=31.0, sent=(sent(15, 1.05), sent(9, 31.0)), error=error("E: x", at=1.02)
    )
    found = fates(worker(0, 1, at=1.0), late)[1]
    assert isinstance(found, Victim)
    assert found.cause == Raised("E: x", -9)


def test_worker_that_lost_its_peer_is_not_the_root_cause():
    # the kernel closes a dying process's sockets before its parent learns of its end
    reset = worker(0, 1, at=1.4, error=error("RuntimeError: Connection closed by peer", at=1.0))
    found = judge_attempt(attempt(reset, worker(1, -9, at=1.001)))
    assert found.root_cause.rank == 1
    assert found.workers[0].fate.after_ns == 0


def test_worker_that_lost_its_peer_is_the_root_cause_if_nobody_else_failed_then():
    reset = worker(0, 1, at=1.0, error=error("ConnectionResetError: Connection reset", at=1.0))
    assert judge_attempt(attempt(reset, worker(1, 1, at=60.0))).root_cause.rank == 0
    assert judge_attempt(attempt(reset, worker(1, 0))).root_cause.rank == 0


def test_start_failure_is_a_cause_of_its_own():
    failed = StartFailed(0, "/bin/none", "No such file or directory", 2, T0 + S)
    found = judge_attempt(attempt(WorkerRecord(0, 0, start_failed=failed), WorkerRecord(1, 1)))
    assert found.root_cause.cause == StartFailure("/bin/none", "No such file or directory", 2)
    assert found.workers[1].fate == NotStarted()
    assert found.state == "failed"


def test_signal_is_a_cause_of_its_own_with_an_explanation():
    found = judge_attempt(attempt(worker(0, -11))).root_cause
    assert found.cause == KilledBySignal(11)
    assert found.explanation.suspect == "itself"


def test_oom_kill_becomes_its_own_cause():
    before, after = Memory(cgroup_kills=0), Memory(cgroup_kills=1, limit=8 << 20)
    found = judge_attempt(attempt(worker(0, -9, memory=after), memory=before)).root_cause
    assert found.cause == OutOfMemory(5 << 20, 8 << 20)
    assert found.explanation.sure == "certain"


def test_sigkills_of_the_launcher_do_not_count_among_the_unexplained():
    before, after = Memory(cgroup_kills=0), Memory(cgroup_kills=1)
    ours = worker(1, -9, at=2.0, sent=(sent(9, 1.5),))
    found = judge_attempt(attempt(worker(0, -9, memory=after), ours, memory=before))
    assert found.root_cause.explanation.sure == "certain"


TORCH_OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 GiB. GPU 0 has a total capacity"
    " of 79.15 GiB of which 3.25 GiB is free. Process 77 has 70 GiB memory in use. If reserved but"
    " unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TORCH_OOM,
            TORCH_OOM[len("OutOfMemoryError: ") : TORCH_OOM.index(". Process")],
        ),
        (
            "RuntimeError: CUDA error: out of memory\nCUDA kernel errors",
            "CUDA error: out of memory",
        ),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 9 GB).",
            "MPS backend out of memory (MPS allocated: 9 GB).",
        ),
        (
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8 bytes",
            "Out of memory allocating 8 bytes",
        ),
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
        ),
    ],
)
def test_a_gpu_without_memory_is_a_cause_of_its_own_and_a_lack_of_memory(text: str, said: str):
    failed = worker(0, 1, error=error(text))
    found = judge_attempt(attempt(failed)).root_cause
    assert found.cause == DeviceOutOfMemory(text, 1)
    assert str(found.cause) == f"ran out of device memory: {said}"
    assert was_out_of_memory(failed, attempt(failed))


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: expected CUDA out of memory",
        "RuntimeError: x\nOutOfMemoryError: CUDA out of memory",
        "RuntimeError: Java side failed: java.lang.OutOfMemoryError: Java heap space",
        "OutOfMemoryError: out of shared memory",
    ],
)
def test_who_only_speaks_of_memory_raised(text: str):
    failed = worker(0, 1, error=error(text))
    assert judge_attempt(attempt(failed)).root_cause.cause == Raised(text, 1)
    assert not was_out_of_memory(failed, attempt(failed))


def test_return_value_that_cannot_be_pickled_is_a_cause_of_its_own():
    text = "NotPicklable: the return value (function) of worker 0 cannot be pickled: TypeError: no"
    found = judge_attempt(attempt(worker(0, 1, error=error(text)))).root_cause
    assert found.cause == NotPicklableReturn("TypeError: no")
    assert str(found.cause) == "returned a value that cannot be pickled: TypeError: no"


def test_spawner_that_died_is_the_root_cause_of_all():
    found = judge_attempt(
        attempt(worker(0), worker(1), died=SpawnerGone(77, -9, "last words"), died_ns=T0 + 2 * S)
    )
    assert found.root_cause.rank is None
    assert found.root_cause.cause == SpawnerLost(77, -9, "last words")
    assert found.root_cause.explanation.suspect == "outside"
    assert [each.fate for each in found.workers] == [Lost("spawner"), Lost("spawner")]
    assert found.state == "failed"


def test_spawner_that_died_when_all_had_succeeded_is_no_failure():
    found = judge_attempt(
        attempt(worker(0, 0), worker(1, 0), died=SpawnerGone(77, -9), died_ns=T0 + 2 * S)
    )
    assert found.root_cause is None
    assert [each.fate for each in found.workers] == [Succeeded(), Succeeded()]
    assert found.state == "succeeded"


def test_worker_that_failed_before_the_spawner_died_is_the_root_cause():
    found = judge_attempt(
        attempt(worker(0, 3), worker(1), died=SpawnerGone(77, None), died_ns=T0 + 2 * S)
    )
    assert found.root_cause.rank == 0


def test_preload_that_failed_is_the_root_cause_of_all():
    broken = PreloadBroken("nope", "ModuleNotFoundError: No module named 'nope'", "Traceback ...")
    found = judge_attempt(attempt(WorkerRecord(0, 0), broken=broken))
    assert found.root_cause.cause == PreloadFailure("nope", broken.reason)
    assert found.root_cause.traceback == "Traceback ..."


def test_signal_to_the_launcher_stops_an_attempt():
    ended = worker(0, -15, at=1.1, sent=(sent(15, 1.0),))
    assert judge_attempt(attempt(ended), interrupted=True).state == "stopped"
    assert judge_attempt(attempt(ended), interrupted=True).root_cause is None


def test_failure_before_the_signal_stays_a_failure():
    ended = worker(1, -15, at=1.1, sent=(sent(15, 1.05),))
    assert judge_attempt(attempt(worker(0, 1), ended), interrupted=True).state == "failed"


def summary(*attempts, **more):
    return summarize(
        attempts,
        directory="/run",
        run_id="r",
        plan_hash="h",
        started_ns=T0,
        ended_ns=T0 + S,
        **more,
    )


def test_last_attempt_decides_the_run():
    bad = judge_attempt(attempt(worker(0, 1)))
    good = judge_attempt(replace(attempt(worker(0, 0)), number=1))
    found = summary(bad, good)
    assert (found.state, found.exit_code, found.restarts) == ("succeeded", ExitCode.SUCCESS, 1)
    assert found.root_cause is None
    found = summary(good, bad)
    assert (found.state, found.exit_code) == ("failed", ExitCode.WORKERS_FAILED)
    assert found.root_cause == bad.root_cause
    assert found.seconds == 1.0


def test_signal_decides_over_the_attempts():
    found = summary(judge_attempt(attempt(worker(0, 1))), signum=signal.SIGINT)
    assert (found.state, found.exit_code) == ("signalled", 130)
    assert for_signal(signal.SIGTERM) == 143


def test_run_without_attempt_failed():
    assert summary().state == "failed"


exits = st.tuples(
    st.sampled_from([None, 0, 1, 3, -9, -11, -15]),
    st.floats(0.1, 5),
    st.lists(st.tuples(st.sampled_from([2, 15, 9]), st.floats(0.1, 5)), max_size=2),
    st.none() | st.tuples(st.sampled_from(["E: x", "E: broken pipe"]), st.floats(0, 5)),
)


@given(st.lists(exits, min_size=1, max_size=6), st.booleans())
def test_every_worker_gets_one_fate_and_at_most_one_is_the_root_cause(drawn, interrupted):
    workers = [
        worker(
            rank,
            code,
            at,
            sent=tuple(sent(*each) for each in sorted(signals, key=lambda each: each[1])),
            error=error(*said) if said else None,
        )
        for rank, (code, at, signals, said) in enumerate(drawn)
    ]
    found = judge_attempt(attempt(*workers), interrupted=interrupted)
    failed = [each for each in found.workers if isinstance(each.fate, Failed)]
    assert len(found.workers) == len(workers)
    if found.root_cause is None:
        assert not failed
    else:
        assert [each.rank for each in failed] == [found.root_cause.rank]
        assert found.state == "failed"
    for each, seen in zip(found.workers, workers, strict=True):
        if isinstance(each.fate, Ended):
            assert seen.sent
        if isinstance(each.fate, Succeeded):
            assert each.exitcode == 0
        if isinstance(each.fate, Victim):
            assert each.fate.after_ns >= 0
    if found.state == "succeeded":
        assert all(isinstance(each.fate, Succeeded) for each in found.workers)


def test_a_spawner_that_the_launcher_killed_was_killed_by_nobody_else():
    died = SpawnerGone(5, -signal.SIGKILL, sent=(signal.SIGKILL,))
    found = judge_attempt(attempt(worker(0), died=died, died_ns=T0 + S))
    assert found.root_cause.explanation.suspect == "launcher"
    assert found.root_cause.explanation.sure == "certain"


# Preflights


def not_started(rank: int) -> WorkerRecord:
    return WorkerRecord(rank, rank)


def preflight(exitcode: int | None, at: float = 1.0, **more) -> PreflightRecord:
    end = None if exitcode is None else Exited(-1, 99, exitcode, T0 + int(at * S))
    return PreflightRecord("check -v", 60.0, "/run/attempt_0/preflight.log", end, **more)


def judged(found: PreflightRecord, **more):
    return judge_attempt(attempt(not_started(0), not_started(1), preflight=found, **more))


@pytest.mark.parametrize(
    ("found", "cause", "at"),
    [
        (preflight(9), PreflightFailure("check -v", 9), 1.0),
        (preflight(-11), PreflightFailure("check -v", -11), 1.0),
        (
            preflight(-15, 3.0, timed_out=True, sent=(sent(15, 2.0),)),
            PreflightFailure("check -v", timeout=60.0),
            2.0,
        ),
        # it had failed before it was sent anything
        (preflight(9, 1.0, sent=(sent(15, 2.0),)), PreflightFailure("check -v", 9), 1.0),
        # it took longer, and then it ended by itself with success
        (
            preflight(0, 3.0, timed_out=True, sent=(sent(15, 2.0),)),
            PreflightFailure("check -v", timeout=60.0),
            2.0,
        ),
    ],
)
def test_a_preflight_that_failed_is_the_root_cause(
    found: PreflightRecord, cause: PreflightFailure, at: float
):
    outcome = judged(found)
    root = outcome.root_cause
    assert root is not None
    assert (root.cause, root.rank, root.time_ns) == (cause, None, T0 + int(at * S))
    assert root.files.stderr == "/run/attempt_0/preflight.log"
    assert outcome.state == "failed"
    assert [each.fate for each in outcome.workers] == [NotStarted(), NotStarted()]


def test_a_preflight_that_could_not_be_started():
    found = preflight(None)
    found.end = StartFailed(-1, "/x", "No such file or directory", 2, T0 + S)
    root = judged(found).root_cause
    assert root is not None
    assert root.cause == PreflightFailure("check -v", reason="No such file or directory")


@pytest.mark.parametrize("found", [preflight(None), preflight(0)])
def test_a_preflight_that_did_not_fail_is_no_cause(found: PreflightRecord):
    assert judged(found).root_cause is None


def test_a_preflight_that_was_ended_for_something_else_is_no_cause():
    found = preflight(-15, 3.0, sent=(sent(15, 2.0),))
    assert judge_attempt(attempt(not_started(0), preflight=found), interrupted=True).state == (
        "stopped"
    )
    end = GroupEnd("failed", "node 1 (b)", 1, "raised ValueError: x", time_ns=T0 + S)
    root = judged(found, group_end=end).root_cause
    assert root is not None
    assert str(root.cause) == "raised ValueError: x, on node 1 (b)"


@pytest.mark.parametrize(("at", "own"), [(0.5, False), (2.0, True)])
def test_of_a_preflight_and_another_node_the_first_counts(at: float, own: bool):
    end = GroupEnd("failed", "node 1 (b)", 1, "raised ValueError: x", time_ns=T0 + int(at * S))
    root = judged(preflight(9), group_end=end).root_cause
    assert root is not None
    assert isinstance(root.cause, PreflightFailure) == own


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (PreflightFailure("nvidia-smi -L", 9), "nvidia-smi -L exited with status 9"),
        (PreflightFailure("nvidia-smi -L", -9), "nvidia-smi -L died of SIGKILL"),
        (PreflightFailure("x", timeout=300.0), "x took longer than 5 min"),
        (PreflightFailure("x", reason="no"), "x could not be started: no"),
    ],
)
def test_what_is_said_of_a_preflight(cause: PreflightFailure, text: str):
    assert str(cause) == f"could not be started: preflight failed: {text}"


def test_a_run_that_made_no_progress_has_an_exit_code_of_its_own():
    stuck = NoProgress(3, 7.0, same=True)
    failed = judge_attempt(attempt(worker(0, 1)))
    outcome = summary(failed, reason="no_progress", no_progress=stuck)
    assert (outcome.state, outcome.exit_code) == ("failed", ExitCode.NO_PROGRESS)
    assert outcome.no_progress == stuck
    assert outcome.root_cause is not None
