"""What is noted and judged of an attempt that the watchdog ended, and the run's exit code then."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import Exited, PreloadBroken, SpawnerGone, Started, StartFailed
from lllaunch.linux.cgroup import UNKNOWN, Memory
from lllaunch.run.causes import ExitedNonZero, KilledBySignal, Raised, StartFailure
from lllaunch.run.ending import outcome_of
from lllaunch.run.group import Attempt
from lllaunch.run.hang import Hang, hang_of
from lllaunch.run.judge import judge_attempt
from lllaunch.run.observer import Recorder
from lllaunch.run.outcome import (
    Ended,
    Failed,
    Lost,
    NotStarted,
    RunOutcome,
    Succeeded,
    Victim,
    summarize,
)
from lllaunch.run.records import (
    AttemptRecord,
    SentSignal,
    WorkerError,
    WorkerFiles,
    WorkerRecord,
)
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.supervisor.machine import (
    Finish,
    SignalProcess,
    StacksTaken,
    WatchdogFired,
    WorkerState,
    fault_of,
)
from lllaunch.watchdog.findings import (
    Finding,
    HeartbeatLost,
    OverMemory,
    Spinning,
    Stalled,
    TimedOut,
    TimerExpired,
)
from lllaunch.watchdog.stacks.frames import Blame, RankStack
from lllaunch.workers.log_files import LogsDest

S = 1_000_000_000
T0 = 1_700_000_000 * S
FIRED = 600.0

ALL = Stalled((0, 1, 2), 300.0)
TIMER = TimerExpired(1, 101, "train.py#40", 10.0, 9)


def sent(signum: int = 15, at: float = FIRED + 1) -> SentSignal:
    return SentSignal(signum, T0 + int(at * S))


def worker(rank: int, exitcode: int | None = -15, at: float = FIRED + 2, **more) -> WorkerRecord:
    """A worker that ended ``at`` seconds after its start, asked to by the launcher if not said."""
    more.setdefault("sent", (sent(),))
    exited = None
    if exitcode is not None:
        exited = Exited(rank, 100 + rank, exitcode, T0 + int(at * S))
    started = Started(rank, 100 + rank, T0)
    return WorkerRecord(rank, 10 + rank, started=started, exited=exited, **more)


def hung(finding: Finding, blame: Blame | None = None, *workers: WorkerRecord, **more):
    workers = workers or tuple(worker(rank) for rank in range(3))
    return AttemptRecord(
        number=0,
        restart_count=0,
        path="/run/attempt_0",
        started_ns=T0,
        ended_ns=T0 + 700 * S,
        workers=workers,
        finding=finding,
        fired_ns=T0 + int(FIRED * S),
        blame=blame,
        **more,
    )


def hang(record: AttemptRecord) -> Hang:
    found = hang_of(record)
    assert found is not None
    return found


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
    found = hang(hung(finding, blame))
    assert (found.named, found.blamed) == (named, blamed)


def test_blame_for_a_timeout_is_kept_for_what_it_is_worth():
    found = hang(hung(TimedOut(60.0), Blame((1,), (0, 2))))
    assert (found.hung, found.waiting) == ((11,), (10, 12))


@pytest.mark.parametrize(
    ("finding", "since"),
    [
        (ALL, FIRED - 300),
        (Spinning((0, 1, 2), 300.0, 21), FIRED - 300),
        (HeartbeatLost((0,), 30.5), FIRED - 30.5),
        (TIMER, FIRED - 10),
        (TimedOut(60.0), None),
        (OverMemory(0, 9, 8), None),
    ],
)
def test_since_when(finding, since):
    assert hang(hung(finding)).since_ns == (None if since is None else T0 + int(since * S))


def test_who_cannot_run_is_known_from_the_stall_and_from_the_stacks():
    stacks = (RankStack(0, state="D"), RankStack(1, state="t"), RankStack(2, state="S"))
    found = hang(hung(Stalled((0, 1, 2), 9.0, asleep=(2,), stopped=(2,)), None, stacks=stacks))
    assert (found.asleep, found.stopped) == ((10, 12), (11, 12))
    assert list(found.stacks) == [10, 11, 12]


# Root cause and fates


def test_one_that_hangs_is_the_root_cause_and_others_only_waited():
    files = WorkerFiles("/run/attempt_0/1", stderr="/run/attempt_0/1/stderr.log")
    workers = (worker(0), worker(1, -9, files=files, sent=(sent(9), sent(15))), worker(2))
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), *workers))
    root = found.root_cause
    assert (found.state, root.rank, root.local_rank, root.ranks) == ("failed", 11, 1, (11,))
    assert (root.cause, root.time_ns, root.files) == (ALL, T0 + int(FIRED * S), files)
    assert root.of_watchdog
    assert [each.fate for each in found.workers] == [
        Ended(15, -15, (15,), waited_for=(11,)),
        Failed(ALL, T0 + int(FIRED * S)),
        Ended(15, -15, (15,), waited_for=(11,)),
    ]


def test_several_that_hang_are_nobody_s_root_cause_alone():
    found = judge_attempt(hung(ALL, Blame((0, 1), (2,))))
    assert (found.root_cause.rank, found.root_cause.ranks) == (None, (10, 11))
    fates = [type(each.fate) for each in found.workers]
    assert fates == [Failed, Failed, Ended]


def test_when_nobody_stands_out_all_were_ended():
    found = judge_attempt(hung(ALL, Blame()))
    assert (found.root_cause.cause, found.root_cause.ranks) == (ALL, ())
    assert [each.fate for each in found.workers] == [Ended(15, -15, (15,))] * 3


def test_when_time_is_over_nobody_is_to_blame():
    found = judge_attempt(hung(TimedOut(60.0), Blame((1,), (0, 2))))
    assert found.root_cause.rank is None
    assert [each.fate for each in found.workers] == [Ended(15, -15, (15,))] * 3


def test_failure_before_the_finding_is_the_root_cause():
    # It raised, and hung while it cleaned up.
    raised = WorkerError("E: x", "Traceback", T0 + 5 * S)
    first = worker(1, -9, error=raised, sent=(sent(), sent(9)))
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), worker(0), first, worker(2)))
    root = found.root_cause
    assert (root.rank, root.cause, root.time_ns) == (11, Raised("E: x", -9), T0 + 5 * S)
    assert not root.of_watchdog
    assert root.hang.finding == ALL
    # That SIGKILL was ours.
    assert root.explanation is None
    assert found.workers[0].fate == Ended(15, -15, (15,))


def test_failure_after_the_finding_is_a_victim_s():
    failed = worker(2, 1, at=FIRED + 0.5, sent=())
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), worker(0), worker(1), failed))
    assert found.root_cause.rank == 11
    assert found.workers[2].fate == Victim(
        ExitedNonZero(1), T0 + int((FIRED + 0.5) * S), S // 2, None
    )


def test_one_that_hangs_and_then_fails_by_itself_failed_for_the_hang():
    failed = worker(1, 1, at=FIRED + 0.5, sent=())
    found = judge_attempt(hung(TIMER, None, worker(0), failed, worker(2)))
    assert found.workers[1].fate == Failed(TIMER, T0 + int(FIRED * S))


def test_one_that_succeeded_before_or_meanwhile_succeeded():
    early, late = worker(0, 0, at=3.0, sent=()), worker(2, 0, at=FIRED + 0.1, sent=())
    found = judge_attempt(hung(ALL, Blame((1,), ()), early, worker(1), late))
    assert [type(each.fate) for each in found.workers] == [Succeeded, Failed, Succeeded]


def test_attempt_that_all_end_well_before_anything_is_done_about_it_succeeded():
    done = [worker(rank, 0, at=FIRED + 0.1, sent=()) for rank in range(2)]
    found = judge_attempt(hung(Stalled((0, 1), 9.0), None, *done))
    assert (found.state, found.root_cause) == ("succeeded", None)


def test_one_that_sigkill_does_not_end_is_the_root_cause_and_lost():
    stuck = worker(1, None, abandoned=True)
    found = judge_attempt(hung(ALL, Blame((1,), (0, 2)), worker(0), stuck, worker(2)))
    assert found.root_cause.rank == 11
    assert found.workers[1].fate == Lost("kernel")


def test_workers_that_wait_for_a_preload_when_time_is_over_were_not_started():
    workers = (WorkerRecord(0, 10), WorkerRecord(1, 11))
    found = judge_attempt(hung(TimedOut(60.0), None, *workers))
    assert found.root_cause.cause == TimedOut(60.0)
    assert [each.fate for each in found.workers] == [NotStarted(), NotStarted()]


def test_spawner_that_died_while_stacks_were_taken_is_not_the_root_cause():
    workers = (worker(0, None), worker(1, None))
    found = judge_attempt(
        hung(TIMER, None, *workers, died=SpawnerGone(7, -9), died_ns=T0 + 601 * S)
    )
    assert found.root_cause.cause == TIMER
    assert [each.fate for each in found.workers] == [Lost(), Lost()]


def test_start_that_failed_before_is_the_root_cause():
    failed = WorkerRecord(0, 10, start_failed=StartFailed(0, "/x", "no", 2, T0 + S))
    found = judge_attempt(hung(TimedOut(60.0), None, failed, worker(1)))
    assert found.root_cause.cause == StartFailure("/x", "no", 2)


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
        worker(rank, code, at, sent=() if asked is None else (sent(15, asked),))
        for rank, (code, at, asked) in enumerate(drawn)
    ]
    found = judge_attempt(hung(finding, blame, *workers))
    failed = {each.rank for each in found.workers if isinstance(each.fate, Failed)}
    if found.root_cause is None:
        assert [each.fate for each in found.workers] == [Succeeded()] * 3
        return
    assert failed <= set(found.root_cause.ranks)
    assert found.state == "failed"
    for each in found.workers:
        if isinstance(each.fate, Ended):
            assert each.rank not in each.fate.waited_for


# The run


def run(record: AttemptRecord, reason, *, signum=None, limit=None) -> RunOutcome:
    return summarize(
        [judge_attempt(record, interrupted=signum is not None)],
        directory="/run",
        run_id="",
        plan_hash="",
        started_ns=T0,
        ended_ns=T0,
        signum=signum,
        reason=reason,
        limit=limit,
    )


FAILED = replace(hung(ALL, None, worker(0, 1, at=1.0, sent=())), finding=None)


@pytest.mark.parametrize(
    ("record", "reason", "code"),
    [
        (hung(ALL), "hang", 4),
        (hung(TimedOut(60.0)), "timeout", 4),
        (hung(OverMemory(0, 9, 8)), "oom", 4),
        (replace(FAILED, stuck=True), "hang", 4),
        (FAILED, "oom", 3),
        (FAILED, "failure", 3),
        (FAILED, "died", 3),
        (FAILED, "spawner", 3),
        (FAILED, None, 3),
    ],
)
def test_exit_code_says_whether_the_watchdog_ended_the_run(record, reason, code):
    found = run(record, reason)
    assert (found.state, found.exit_code) == ("failed", code)


def test_signal_is_stronger_than_the_watchdog():
    found = run(hung(ALL), "signal", signum=2)
    assert (found.state, found.exit_code) == ("signalled", 130)
    assert found.root_cause.cause == ALL


def test_success_after_a_hang_is_a_success():
    done = replace(hung(ALL, None, worker(0, 0, at=1.0, sent=())), finding=None)
    assert run(done, None).exit_code == 0


LIMIT = TimedOut(3600.0, "run")


def test_limit_of_the_run_between_attempts_leaves_the_root_cause_alone():
    found = run(FAILED, "timeout", limit=LIMIT)
    assert (found.exit_code, found.limit) == (4, LIMIT)
    assert found.root_cause.cause == ExitedNonZero(1)


def test_limit_of_the_run_within_an_attempt_is_its_root_cause():
    found = run(hung(LIMIT), "timeout", limit=LIMIT)
    assert (found.exit_code, found.limit) == (4, None)
    assert found.root_cause.cause == LIMIT


def test_limit_of_the_run_that_changed_nothing_is_not_told():
    assert run(FAILED, "failure", limit=LIMIT).limit is None


# What is noted


def noted(nproc: int = 2, read=lambda: UNKNOWN) -> Recorder:
    recorder = Recorder(read=read)
    dest = LogsDest(error_files={0: "", 1: ""})
    envs = {rank: {"RANK": str(10 + rank)} for rank in range(nproc)}
    recorder.begin(Attempt(0, "/run/attempt_0", dest, envs))
    for rank in range(nproc):
        recorder.note(Started(rank, 100 + rank, T0))
    return recorder


def record_of(recorder: Recorder) -> AttemptRecord:
    record = recorder.latest()
    assert record is not None
    return record


def fired(finding: Finding = ALL, **more: Any) -> WatchdogFired:
    return WatchdogFired(finding, "hang", **more)


def test_first_finding_counts():
    recorder = noted()
    assert recorder.fired(fired())
    assert not recorder.fired(fired(TIMER))
    record = record_of(recorder)
    assert record.finding == ALL
    assert record.fired_ns >= record.started_ns


def test_finding_in_an_attempt_that_is_being_ended_is_too_late():
    recorder = noted()
    recorder.ending()
    assert not recorder.fired(fired(LIMIT, whole_run=True))
    assert record_of(recorder).finding is None
    assert recorder.limit == LIMIT


@pytest.mark.parametrize(
    "fact",
    [Exited(0, 100, 1, T0), SpawnerGone(7, -9), PreloadBroken("m", "no", "")],
    ids=lambda fact: type(fact).__name__,
)
def test_finding_after_the_last_worker_is_too_late(fact):
    recorder = noted(nproc=1)
    recorder.note(fact)
    assert not recorder.fired(fired())


def test_finding_before_any_attempt_is_nobodys():
    recorder = Recorder(read=lambda: UNKNOWN)
    assert not recorder.fired(fired(LIMIT, whole_run=True))
    assert recorder.limit == LIMIT
    assert recorder.latest() is None


def test_stacks_are_kept_with_their_files():
    recorder = noted()
    recorder.fired(fired())
    stacks = (RankStack(0, "/run/attempt_0/0/stacks.txt"), RankStack(1))
    recorder.stacks_taken(StacksTaken(stacks, Blame((1,), (0,)), fired().finding))
    record = record_of(recorder)
    assert (record.stacks, record.blame) == (stacks, Blame((1,), (0,)))
    files = [each.files.stacks for each in record.workers]
    assert files == ["/run/attempt_0/0/stacks.txt", ""]


@pytest.mark.parametrize("pid", [101, 5555], ids=["the worker", "below it"])
def test_signal_that_a_timer_asks_for_is_the_launcher_s(pid):
    recorder = noted()
    recorder.process_signalled(SignalProcess(1, pid, 9))
    recorder.note(Exited(1, 101, -9, 2 * T0))
    found = judge_attempt(record_of(recorder)).workers[1].fate
    assert found == Ended(9, -9, (9,))


def test_numbers_among_all_workers():
    recorder = noted()
    assert (recorder.number(1), recorder.number(7)) == (11, 7)
    assert Recorder(read=lambda: UNKNOWN).number(1) == 1


def test_outcome_knows_why_the_run_ended():
    recorder = noted(nproc=1)
    recorder.note(Exited(0, 100, 1, T0))
    recorder.fired(fired(LIMIT, whole_run=True))
    recorder.finished(Finish(WorkerState.FAILED, "timeout"))
    spec = LaunchSpec(Entrypoint("program", "x", "x"), nproc=1, log_dir="/run", cwd="/")
    found = outcome_of(recorder, spec, "h", T0, None)
    assert (found.exit_code, found.limit) == (4, LIMIT)
    assert outcome_of(None, spec, "h", T0, None).exit_code == 3


# In what way a worker failed


@pytest.mark.parametrize(
    ("fact", "fault"),
    [
        (Exited(0, 100, 1, T0), "failure"),
        (Exited(0, 100, 137, T0), "failure"),
        (StartFailed(0, "/x", "no", 2, T0), "failure"),
        (Exited(0, 100, -signal.SIGSEGV, T0), "died"),
        (Exited(0, 100, -signal.SIGBUS, T0), "died"),
        (Exited(0, 100, -signal.SIGKILL, T0), "died"),
    ],
)
def test_fault_follows_from_how_it_ended(fact, fault):
    recorder = noted()
    assert fault_of(recorder.note(fact)) == fault


def test_fault_is_a_lack_of_memory_where_the_kernel_says_so():
    kills = iter([0, 1])
    recorder = noted(read=lambda: Memory(cgroup_kills=next(kills)))
    fact = Exited(0, 100, -9, T0)
    assert fault_of(recorder.note(fact)) == "oom"
    # As the judge says.
    assert type(judge_attempt(record_of(recorder)).root_cause.cause).__name__ == "OutOfMemory"


def test_fault_is_not_a_lack_of_memory_where_that_is_only_possible():
    recorder = noted(read=lambda: Memory(total=100))
    fact = Exited(0, 100, -9, T0, max_rss=99)
    assert fault_of(recorder.note(fact)) == "died"
    assert judge_attempt(record_of(recorder)).root_cause.cause == KilledBySignal(9)


def test_fault_of_one_that_we_killed_is_not_a_lack_of_memory():
    kills = iter([0, 1])
    recorder = noted(read=lambda: Memory(cgroup_kills=next(kills)))
    recorder.sent(9)
    fact = Exited(0, 100, -9, 2 * T0)
    assert fault_of(recorder.note(fact)) == "died"


def test_fault_of_nobody_s_worker_is_told_by_its_status():
    recorder = noted()
    fact = Exited(7, 100, -9, T0)
    assert fault_of(recorder.note(fact)) == "died"
