"""Which failure came first, who hung, and what became of every worker: of made-up records."""

from __future__ import annotations

import io
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.left import ended_by_launcher, own

from lllaunch.console.console import Console
from lllaunch.errors import for_signal
from lllaunch.events import (
    Exited,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.files import LineFile
from lllaunch.linux.cgroup import UNKNOWN, Memory
from lllaunch.run.execute import Attempt
from lllaunch.run.judge import hang_of, judge_attempt, summarize, was_out_of_memory
from lllaunch.run.observer import (
    AttemptRecord,
    PreflightRecord,
    RunObserver,
    SentSignal,
    WorkerError,
    WorkerFiles,
    WorkerRecord,
)
from lllaunch.run.result import (
    CalledExit,
    DeviceOutOfMemory,
    Ended,
    ExitedNonZero,
    Failed,
    KilledBySignal,
    Lost,
    NotPicklableReturn,
    NotStarted,
    OutOfMemory,
    PreflightFailure,
    Raised,
    RunResult,
    SpawnerLost,
    StartFailure,
    Succeeded,
    Victim,
)
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.supervisor.machine import (
    GroupEnd,
    SignalWorkers,
    fault_of,
)
from lllaunch.watchdog.evidence import (
    NOBODY,
    Blame,
    Call,
    Frame,
    GroupTrace,
    RankStack,
    RankTrace,
)
from lllaunch.watchdog.findings import (
    Finding,
    GaveUp,
    HeartbeatLost,
    OverMemory,
    Spinning,
    Stalled,
    TimedOut,
    TimerExpired,
)
from lllaunch.workers.log_files import LogsDest

S = 1_000_000_000
T0 = 1_700_000_000 * S
FIRED = 600.0


def worker(rank: int, exitcode: int | None = None, at: float = 1.0, **more) -> WorkerRecord:
    """A worker that was started at 0 s and, if it has an exit code, ended ``at`` seconds later."""
    exited = None
    if exitcode is not None:
        exited = Exited(rank, 100 + rank, exitcode, T0 + int(at * S), max_rss=5 << 20)
    return WorkerRecord(rank, rank, started=Started(rank, 100 + rank, T0), exited=exited, **more)


def sent(signum: int = 15, at: float = FIRED + 1) -> SentSignal:
    return SentSignal(signum, T0 + int(at * S))


def error(message: str, at: float | None = None) -> WorkerError:
    return WorkerError(message, f"Traceback\n{message}", None if at is None else T0 + int(at * S))


def attempt(*workers: WorkerRecord, **more) -> AttemptRecord:
    return AttemptRecord(0, 0, "/run/attempt_0", T0, T0 + 9 * S, tuple(workers), **more)


def fates(*workers: WorkerRecord, **more):
    return [own(each) for each in judge_attempt(attempt(*workers, **more)).workers]


def test_first_exit_in_time_is_the_root_cause():
    found = judge_attempt(attempt(worker(0, 1, at=2.000_000_3), worker(1, 7, at=2.000_000_2)))
    assert found.state == "failed"
    assert found.root_cause.rank == 1
    assert found.root_cause.cause == ExitedNonZero(7)
    assert own(found.workers[0]) == Victim(
        cause=ExitedNonZero(1), seconds_after_root_cause=100 / 1e9
    )


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


def in_collective(rank: int, numbers: int) -> RankTrace:
    calls = tuple(Call(number + 1, "all_reduce") for number in range(numbers))
    return RankTrace(rank, (GroupTrace("0", "default_pg", tuple(range(3)), calls),))


def test_whom_others_waited_for_until_their_process_group_gave_up_is_the_first() -> None:
    said = "RuntimeError: Timed out waiting 5000ms for recv operation to complete"
    failed = [
        worker(rank, 1, 9.0, error=error(said, 9.0), trace=in_collective(rank, 2))
        for rank in (0, 1)
    ]
    frame = Frame("/home/train.py", 12, "load")
    look = RankStack(2, frames=(frame,), state="S", trace=in_collective(2, 1))
    late = worker(2, -15, 9.5, sent=(sent(15, 9.2),))
    found = judge_attempt(attempt(*failed, late, looks=(look,)))
    assert found.root_cause is not None
    assert (found.root_cause.rank, found.root_cause.cause) == (2, GaveUp(5.0))
    assert found.root_cause.hang is not None
    assert "rank 2 never came to all_reduce #2" in found.root_cause.hang.collectives.text
    assert [type(own(each)) for each in found.workers] == [Victim, Victim, Failed]
    # where nobody could be asked, who raised first is all that is known
    assert judge_attempt(attempt(*failed, late)).root_cause.rank == 0


def test_who_does_one_operation_too_many_is_told_so() -> None:
    said = error("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", 5.0)
    late = worker(2, 1, 5.1, error=said, trace=in_collective(2, 6))
    found = judge_attempt(attempt(worker(0, 0, 5.2), worker(1, 0, 5.2), late)).root_cause
    assert found is not None
    assert found.explanation is not None
    assert found.explanation.text == (
        "It called all_reduce #6 of default_pg, when ranks 0-1 had ended with success."
    )


def test_worker_ended_by_the_launcher_is_no_victim():
    others = [
        worker(1, -signal.SIGTERM, at=1.1, sent=(sent(15, 1.05),)),
        worker(2, -signal.SIGKILL, at=31.0, sent=(sent(15, 1.05), sent(9, 31.0))),
        worker(3, 1, at=1.2, sent=(sent(15, 1.05),)),
        worker(4, 0, at=1.2, sent=(sent(15, 1.05),)),
        worker(5, 1, at=1.2, sent=(sent(15, 1.05),), error=error("KeyboardInterrupt", at=1.1)),
        # it had raised before
        worker(6, 1, at=31.0, sent=(sent(15, 1.05),), error=error("E: x", at=1.02)),
    ]
    assert fates(worker(0, 1), *others)[1:] == [
        ended_by_launcher(-15, 15),
        ended_by_launcher(-9, 15, 9),
        ended_by_launcher(1, 15),
        ended_by_launcher(0, 15),
        ended_by_launcher(1, 15),
        Victim(cause=Raised("E: x", 1), seconds_after_root_cause=(int(1.02 * S) - S) / 1e9),
    ]


def test_who_called_exit_where_the_first_did_before_he_noticed_the_signal_failed_alike():
    here = CalledExit(3, "3", "s.py", 7, "main")
    elsewhere = CalledExit(3, "3", "s.py", 2, "on_sigterm")
    others = [
        worker(1, 3, at=1.2, sent=(sent(15, 1.05),), exit_call=here),
        worker(2, 3, at=1.2, sent=(sent(15, 1.05),), exit_call=elsewhere),
        worker(3, 3, at=1.2, sent=(sent(15, 1.05),)),
    ]
    assert fates(worker(0, 3, exit_call=here), *others) == [
        Failed(cause=here),
        Victim(cause=here, seconds_after_root_cause=(int(1.2 * S) - S) / 1e9),
        ended_by_launcher(3, 15),
        ended_by_launcher(3, 15),
    ]


STORE = '  File "/x/torch/distributed/rendezvous.py", line 1, in _create_c10d_store'
GLOO = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("message", "frame", "blamed"),
    [
        # the kernel closes a dying process's sockets before its parent learns of its end
        ("ConnectionResetError: Connection reset by peer", STORE, 1),
        (GLOO, "", 1),
        # of a server of the user's
        ("ConnectionRefusedError: [Errno 111] Connection refused", "", 0),
        ("BrokenPipeError: [Errno 32] Broken pipe", '  File "/x/train.py", line 1, in log', 0),
    ],
)
def test_worker_that_lost_its_peer_is_not_the_root_cause(message, frame, blamed):
    said = replace(error(message, at=1.0), traceback=f"Traceback\n{frame}\n{message}")
    found = judge_attempt(attempt(worker(0, 1, at=1.4, error=said), worker(1, -9, at=1.001)))
    assert found.root_cause.rank == blamed
    assert (found.workers[1 - blamed].seconds_after_root_cause == 0) == (blamed == 1)


def test_worker_that_lost_its_peer_is_the_root_cause_if_nobody_else_failed_then():
    reset = worker(0, 1, at=1.0, error=error(GLOO, at=1.0))
    assert judge_attempt(attempt(reset, worker(1, 1, at=60.0))).root_cause.rank == 0
    own = worker(0, 1, at=1.0, error=error("ConnectionResetError: Connection reset", at=1.0))
    assert judge_attempt(attempt(own, worker(1, 0))).root_cause.rank == 0


NO_FILE = StartFailed(0, "/x", "No such file", 2, T0 + S)
NOT_PICKLABLE = "NotPicklable: the return value (function) of worker 0 cannot be pickled: TypeError"


@pytest.mark.parametrize(
    ("one", "cause"),
    [
        (worker(0, -11), KilledBySignal(11)),
        (worker(0, 1, error=error(NOT_PICKLABLE)), NotPicklableReturn("TypeError")),
        (WorkerRecord(0, 0, start_failed=NO_FILE), StartFailure("/x", "No such file", 2)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_how_a_worker_failed_is_its_cause(one, cause):
    found = judge_attempt(attempt(one, WorkerRecord(1, 1)))
    assert (found.state, found.root_cause.cause) == ("failed", cause)
    assert own(found.workers[1]) == NotStarted()


def test_oom_kill_becomes_its_own_cause_and_sigkills_of_the_launcher_do_not_count():
    before, after = Memory(cgroup_kills=0), Memory(cgroup_kills=1, limit=8 << 20)
    ours = worker(1, -9, at=2.0, sent=(sent(9, 1.5),))
    found = judge_attempt(attempt(worker(0, -9, memory=after), ours, memory=before)).root_cause
    assert found.cause == OutOfMemory(5 << 20, 8 << 20)
    assert found.explanation.sure == "certain"


@pytest.mark.parametrize(
    ("kind", "said", "more"),
    [
        (
            "OutOfMemoryError: ",
            "CUDA out of memory. Tried to allocate 80 GiB. GPU 0 has 79 GiB of which 3 GiB is free",
            ". Process 77 has 70 GiB memory in use. If reserved but unallocated memory is large",
        ),
        ("RuntimeError: ", "CUDA error: out of memory", "\nCUDA kernel errors"),
        ("RuntimeError: ", "MPS backend out of memory (MPS allocated: 9 GB).", ""),
        ("cupy.cuda.memory.OutOfMemoryError: ", "Out of memory allocating 8 bytes", ""),
        ("XlaRuntimeError: ", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8", ""),
    ],
)
def test_a_gpu_without_memory_is_a_cause_of_its_own_and_a_lack_of_memory(kind, said, more):
    failed = worker(0, 1, error=error(kind + said + more))
    found = judge_attempt(attempt(failed)).root_cause
    assert found.cause == DeviceOutOfMemory(kind + said + more, 1)
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


def test_spawner_that_died_is_the_root_cause_of_all_that_had_not_ended():
    died = {"died": SpawnerGone(77, -9, "last words"), "died_ns": T0 + 2 * S}
    found = judge_attempt(attempt(worker(0), worker(1), **died))
    assert (found.state, found.root_cause.rank) == ("failed", None)
    assert found.root_cause.cause == SpawnerLost(77, -9, "last words")
    assert found.root_cause.explanation.suspect == "outside"
    assert [own(each) for each in found.workers] == [Lost(why="spawner"), Lost(why="spawner")]
    assert judge_attempt(attempt(worker(0, 3), worker(1), **died)).root_cause.rank == 0
    found = judge_attempt(attempt(worker(0, 0), worker(1, 0), **died))
    assert (found.state, found.root_cause) == ("succeeded", None)
    assert [own(each) for each in found.workers] == [Succeeded(), Succeeded()]


def test_signal_to_the_launcher_stops_an_attempt_that_had_not_failed():
    ended = worker(0, -15, at=1.1, sent=(sent(15, 1.05),))
    found = judge_attempt(attempt(ended), interrupted=True)
    assert (found.state, found.root_cause) == ("stopped", None)
    failed = attempt(ended, worker(1, 1))
    assert judge_attempt(failed, interrupted=True).state == "failed"


def summary(*attempts, **more):
    known = {"directory": "/run", "run_id": "r", "plan_hash": "h"}
    return summarize(attempts, **known, started_ns=T0, ended_ns=T0 + S, **more)


def test_signal_decides_over_the_attempts():
    found = summary(judge_attempt(attempt(worker(0, 1))), signum=signal.SIGINT)
    assert (found.state, found.exit_code) == ("signalled", 130)
    assert for_signal(signal.SIGTERM) == 143
    # also over the watchdog
    found = summary(judge_attempt(hung(ALL), interrupted=True), reason="signal", signum=2)
    assert (found.state, found.exit_code) == ("signalled", 130)
    assert found.root_cause.cause == ALL


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
    failed = [each for each in found.workers if isinstance(each, Failed)]
    assert len(found.workers) == len(workers)
    if found.root_cause is None:
        assert not failed
    else:
        assert [each.rank for each in failed] == [found.root_cause.rank]
        assert found.state == "failed"
    for each, seen in zip(found.workers, workers, strict=True):
        if isinstance(each, Ended):
            assert seen.sent
        if isinstance(each, Succeeded):
            assert each.exitcode == 0
        if isinstance(each, Victim):
            assert each.seconds_after_root_cause >= 0
    if found.state == "succeeded":
        assert all(isinstance(each, Succeeded) for each in found.workers)


# Preflights


def not_started(rank: int) -> WorkerRecord:
    return WorkerRecord(rank, rank)


def preflight(exitcode: int | None, at: float = 1.0, **more) -> PreflightRecord:
    end = None if exitcode is None else Exited(-1, 99, exitcode, T0 + int(at * S))
    files = WorkerFiles(stderr="/run/attempt_0/preflight.log")
    return PreflightRecord(-1, -1, files, exited=end, command="check -v", timeout=60.0, **more)


def judged(found: PreflightRecord, **more):
    return judge_attempt(attempt(not_started(0), not_started(1), preflight=found, **more))


LATE = (sent(15, 2.0),)
TOOK_TOO_LONG = PreflightFailure("check -v", timeout=60.0)


@pytest.mark.parametrize(
    ("found", "cause", "at"),
    [
        (preflight(-11), PreflightFailure("check -v", -11), 1.0),
        (preflight(-15, 3.0, timed_out=True, sent=LATE), TOOK_TOO_LONG, 2.0),
        # it had failed before it was sent anything
        (preflight(9, 1.0, sent=LATE), PreflightFailure("check -v", 9), 1.0),
        # it took longer, and then it ended by itself with success
        (preflight(0, 3.0, timed_out=True, sent=LATE), TOOK_TOO_LONG, 2.0),
    ],
)
def test_a_preflight_that_failed_is_the_root_cause(found, cause, at):
    outcome = judged(found)
    root = outcome.root_cause
    assert (root.cause, root.rank, root.time_ns) == (cause, None, T0 + int(at * S))
    assert root.stderr == "/run/attempt_0/preflight.log"
    assert outcome.state == "failed"
    assert [own(each) for each in outcome.workers] == [NotStarted(), NotStarted()]


def test_a_preflight_that_was_ended_for_something_else_is_no_cause():
    found = preflight(-15, 3.0, sent=(sent(15, 2.0),))
    stopped = judge_attempt(attempt(not_started(0), preflight=found), interrupted=True)
    assert stopped.state == "stopped"
    end = GroupEnd("failed", "node 1 (b)", 1, "raised ValueError: x", time_ns=T0 + S)
    root = judged(found, group_end=end).root_cause
    assert str(root.cause) == "raised ValueError: x, on node 1 (b)"


# What the watchdog ended

ALL = Stalled((0, 1, 2), 300.0)
TIMER = TimerExpired(1, 101, "train.py#40", 10.0, 9)


def asked(rank: int, exitcode: int | None = -15, at: float = FIRED + 2, **more) -> WorkerRecord:
    """A worker that ended ``at`` seconds after its start, asked to by the launcher if not said."""
    more.setdefault("sent", (sent(),))
    return replace(worker(rank, exitcode, at, **more), rank=10 + rank)


def hung(finding: Finding, blame: Blame | None = None, *workers: WorkerRecord, **more):
    stacks = more.pop("stacks", ())
    record = attempt(*(workers or map(asked, range(3))), **more)
    hang = hang_of(record, finding, T0 + int(FIRED * S), stacks, blame or NOBODY)
    return replace(record, ended_ns=T0 + 700 * S, hang=hang)


# Who hangs


@pytest.mark.parametrize(
    ("finding", "blame", "named", "blamed"),
    [
        (TIMER, None, (11,), (11,)),
        (TIMER, Blame(), (11,), (11,)),
        (TIMER, Blame((2,), (0, 1)), (11,), (12,)),
        (ALL, None, (10, 11, 12), ()),
        (ALL, Blame((), (0, 1, 2)), (10, 11, 12), ()),
        (ALL, Blame((1, 2), (0,)), (10, 11, 12), (11, 12)),
        (Stalled((2,), 300.0), None, (12,), (12,)),
        (Spinning((0, 1, 2), 300.0, 21), None, (10, 11, 12), ()),
        (Spinning((0, 1, 2), 300.0, 21), Blame((1,), (0, 2)), (10, 11, 12), (11,)),
        (Spinning((2,), 300.0, 21), None, (12,), (12,)),
        (Stalled((0, 2), 300.0, "rank"), None, (10, 12), (10, 12)),
        (HeartbeatLost((0, 2), 30.0), None, (10, 12), (10, 12)),
        (OverMemory(0, 9, 8), None, (10,), (10,)),
        (TimedOut(60.0), Blame((1,), (0, 2)), (), ()),
    ],
)
def test_who_hangs(finding, blame, named, blamed):
    found = hung(finding, blame).hang
    assert (found.named, found.blamed) == (named, blamed)


def test_who_cannot_run_is_known_from_the_stall_and_from_the_stacks():
    stacks = (RankStack(0, state="D"), RankStack(1, state="t"), RankStack(2, state="S"))
    found = hung(Stalled((0, 1, 2), 9.0, asleep=(2,), stopped=(2,)), None, stacks=stacks).hang
    assert (found.asleep, found.stopped) == ((10, 12), (11, 12))
    assert list(found.stacks) == [10, 11, 12]


# Root cause and fates


def test_one_that_hangs_is_the_root_cause_and_others_only_waited():
    files = WorkerFiles("/run/attempt_0/1", stderr="/run/attempt_0/1/stderr.log")
    workers = (asked(0), asked(1, -9, files=files, sent=(sent(9), sent(15))), asked(2))
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), *workers))
    root = found.root_cause
    assert (found.state, root.rank, root.local_rank, root.ranks) == ("failed", 11, 1, (11,))
    assert (root.cause, root.time_ns, root.stderr) == (ALL, T0 + int(FIRED * S), files.stderr)
    assert root.of_watchdog
    assert [own(each) for each in found.workers] == [
        ended_by_launcher(-15, 15, waited_for=(11,)),
        Failed(cause=ALL),
        ended_by_launcher(-15, 15, waited_for=(11,)),
    ]


@pytest.mark.parametrize(
    ("one", "fate"),
    [
        (
            asked(2, 1, at=FIRED + 0.5, sent=()),
            Victim(cause=ExitedNonZero(1), seconds_after_root_cause=0.5),
        ),
        (asked(1, 1, at=FIRED + 0.5, sent=()), Failed(cause=ALL)),
        (asked(0, 0, at=3.0, sent=()), Succeeded()),
        (asked(2, 0, at=FIRED + 0.1, sent=()), Succeeded()),
        (asked(1, None, abandoned=True), Lost(why="kernel")),
    ],
)
def test_where_one_hangs_what_became_of_each_is_told(one, fate):
    workers = [one if rank == one.local_rank else asked(rank) for rank in range(3)]
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), *workers))
    assert found.root_cause.rank == 11
    assert own(found.workers[one.local_rank]) == fate


def test_attempt_that_all_end_well_before_anything_is_done_about_it_succeeded():
    done = [asked(rank, 0, at=FIRED + 0.1, sent=()) for rank in range(2)]
    found = judge_attempt(hung(Stalled((0, 1), 9.0), None, *done))
    assert (found.state, found.root_cause) == ("succeeded", None)


ends = st.tuples(
    st.sampled_from([None, 0, 1, -9, -15]),
    st.floats(1, 2 * FIRED),
    st.none() | st.floats(1, 2 * FIRED),
)
findings = st.sampled_from([ALL, TIMER, TimedOut(60.0), HeartbeatLost((0, 2), 9.0)])
blames = st.none() | st.builds(
    lambda hung: Blame(tuple(sorted(hung)), tuple(sorted({0, 1, 2} - hung))),
    st.sets(st.integers(0, 2)),
)


@given(findings, blames, st.tuples(ends, ends, ends))
def test_who_failed_is_part_of_the_root_cause(finding, blame, drawn):
    workers = [
        asked(rank, code, at, sent=() if sent_at is None else (sent(15, sent_at),))
        for rank, (code, at, sent_at) in enumerate(drawn)
    ]
    found = judge_attempt(hung(finding, blame, *workers))
    failed = {each.rank for each in found.workers if isinstance(each, Failed)}
    if found.root_cause is None:
        assert [own(each) for each in found.workers] == [Succeeded()] * 3
        return
    assert failed <= set(found.root_cause.ranks)
    assert found.state == "failed"
    for each in found.workers:
        if isinstance(each, Ended):
            assert each.rank not in each.waited_for


# The run


def run(record: AttemptRecord, reason, **more) -> RunResult:
    return summary(judge_attempt(record), reason=reason, **more)


FAILED = attempt(worker(0, 1))


@pytest.mark.parametrize(
    ("record", "reason", "code"),
    [
        (hung(ALL), "hang", 4),
        (hung(TimedOut(60.0)), "timeout", 4),
        (hung(OverMemory(0, 9, 8)), "oom", 4),
        (replace(FAILED, stuck=True), "hang", 4),
        (FAILED, "oom", 3),
        (FAILED, "failure", 3),
        (FAILED, None, 3),
    ],
)
def test_exit_code_says_whether_the_watchdog_ended_the_run(record, reason, code):
    found = run(record, reason)
    assert (found.state, found.exit_code) == ("failed", code)


LIMIT = TimedOut(3600.0, "run")


@pytest.mark.parametrize(
    ("record", "reason", "code", "told", "cause"),
    [
        # between attempts
        (FAILED, "timeout", 4, LIMIT, ExitedNonZero(1)),
        (hung(LIMIT), "timeout", 4, None, LIMIT),
        # it changed nothing
        (FAILED, "failure", 3, None, ExitedNonZero(1)),
    ],
)
def test_limit_of_the_run_is_told_where_it_is_not_the_root_cause(record, reason, code, told, cause):
    found = run(record, reason, limit=LIMIT)
    assert (found.exit_code, found.limit, found.root_cause.cause) == (code, told, cause)


# What is noted


def observer(read=lambda: UNKNOWN) -> RunObserver:
    entrypoint = Entrypoint("script", "/a/train.py", "train.py")
    spec = LaunchSpec(entrypoint, nproc=2, log_dir="/run", cwd="/")
    log = LineFile(os.devnull, pytest.fail)
    return RunObserver(spec, log, Console(io.StringIO(), cwd="/run"), read=read)


def noted(nproc: int = 2, read=lambda: UNKNOWN) -> RunObserver:
    recorder = observer(read)
    dest = LogsDest(error_files={0: "", 1: ""})
    facts = {rank: {"rank": str(10 + rank)} for rank in range(nproc)}
    recorder.begin(Attempt(0, "/run/attempt_0", dest, facts))
    for rank in range(nproc):
        recorder.observe(Started(rank, 100 + rank, T0))
    return recorder


# In what way a worker failed


@pytest.mark.parametrize(
    ("fact", "signals", "fault"),
    [
        (Exited(0, 100, 137, T0), (), "failure"),
        (StartFailed(0, "/x", "no", 2, T0), (), "failure"),
        (Exited(0, 100, -signal.SIGBUS, T0), (), "died"),
        # by the kernel, and by the launcher
        (Exited(0, 100, -signal.SIGKILL, 2 * T0), (), "oom"),
        (Exited(0, 100, -signal.SIGKILL, 2 * T0), (9,), "died"),
    ],
)
def test_fault_follows_from_how_it_ended(fact, signals, fault):
    kills = iter([0, 1])
    recorder = noted(read=lambda: Memory(cgroup_kills=next(kills)))
    for signum in signals:
        recorder.observe(SignalWorkers(signum, "signal"))
    assert fault_of(recorder.observe(fact)) == fault
    record = recorder.latest()
    # as the judge says
    assert was_out_of_memory(record.workers[0], record) is (fault == "oom")
