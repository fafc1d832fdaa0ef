"""What is said about a worker's death, and how sure that is: `explain` on made-up records."""

from __future__ import annotations

import signal

import pytest

from lllaunch.events import Exited
from lllaunch.linux.cgroup import UNKNOWN, Memory, read_memory
from lllaunch.run.judge import explain
from lllaunch.run.observer import AttemptRecord, SentSignal, WorkerError, WorkerRecord

GIB = 1 << 30
KILLED = -signal.SIGKILL


def memory(cgroup=0, machine=0, **more) -> Memory:
    return Memory(cgroup_kills=cgroup, machine_kills=machine, total=32 * GIB, **more)


def explained(exitcode: int, *, before=UNKNOWN, after=UNKNOWN, rss=0, said="", sent=(), killed=0):
    """What is said about a worker; ``killed`` more died of SIGKILL."""
    worker = WorkerRecord(0, 0, exited=Exited(0, 1, exitcode, 9, rss), memory=after)
    worker.error = WorkerError(said) if said else None
    worker.sent = tuple(SentSignal(signum, 5) for signum in sent)
    others = [
        WorkerRecord(rank, rank, exited=Exited(rank, 1, KILLED, 9)) for rank in range(1, killed + 1)
    ]
    return explain(worker, AttemptRecord(0, 0, "", 1, workers=(worker, *others), memory=before))


def sigkill(before: Memory, after: Memory, rss: int = 0, killed: int = 0):
    found = explained(KILLED, before=before, after=after, rss=rss, killed=killed)
    assert found is not None
    return found


def test_sigkill_sent_by_the_launcher_is_certain():
    found = explained(KILLED, sent=(signal.SIGTERM, signal.SIGKILL))
    assert (found.suspect, found.sure) == ("launcher", "certain")
    assert found.text == "The launcher sent it SIGKILL."


@pytest.mark.parametrize(
    ("used", "suspect", "sure", "words"),
    [
        (59.5, "itself", "likely", "used up the 1 min of CPU time"),
        (3.0, "outside", "likely", "another process did"),
    ],
)
def test_where_cpu_time_is_limited_sigkill_from_outside_is_not_certain(used, suspect, sure, words):
    ended = Exited(0, 1, KILLED, 9, 0, used, cpu_limit=60.0)
    worker = WorkerRecord(0, 0, exited=ended, memory=memory())
    record = AttemptRecord(0, 0, "", 1, workers=(worker,), memory=memory())
    found = explain(worker, record)
    assert (found.suspect, found.sure) == (suspect, sure)
    assert words in found.text


def test_a_torch_without_cuda_says_so():
    for said in (
        "AssertionError: Torch not compiled with CUDA enabled",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    ):
        assert "built without CUDA" in explained(1, said=said).text


LATE = "CUDA kernel errors might be asynchronously reported at some other API call"


@pytest.mark.parametrize(
    ("said", "check", "sure", "words"),
    [
        (f"CUDA error: invalid device ordinal\n{LATE}", "", "certain", "launch.nproc=gpu starts"),
        (f"CUDA error: an illegal memory access\n{LATE}", "", "likely", "A CUDA kernel failed."),
        (
            f"CUDA error: device-side assert triggered\n{LATE}",
            "`i < n` (Indexing.cu)",
            "likely",
            "often of an index: `i < n` (Indexing.cu). Kernels run after their calls",
        ),
    ],
)
def test_what_cuda_says_is_explained(said, check, sure, words):
    worker = WorkerRecord(0, 0, exited=Exited(0, 1, 1, 9), error=WorkerError(said))
    worker.kernel_check = check
    found = explain(worker, AttemptRecord(0, 0, "", 1, workers=(worker,)))
    assert (found.suspect, found.sure) == ("itself", sure)
    assert words in found.text
    assert explained(1, said=f"CUDA error: out of memory\n{LATE}") is None


def test_oom_kill_in_the_cgroup_is_certain():
    found = sigkill(memory(2), memory(3, limit=8 * GIB), rss=7 * GIB)
    assert (found.suspect, found.sure) == ("oom", "certain")
    assert found.text == (
        "The kernel's OOM killer struck in this cgroup during the attempt (once). "
        "Its peak memory was 7.0 GiB; the cgroup's limit is 8.0 GiB."
    )


def test_sigkill_without_oom_kill_came_from_outside():
    found = sigkill(memory(), memory(), rss=1 * GIB)
    assert (found.suspect, found.sure) == ("outside", "certain")
    assert found.text == (
        "The launcher did not send it, and the kernel counts no OOM kill: another process did "
        "(kill -9, a job scheduler, a memory watchdog such as systemd-oomd), or the worker itself."
    )
    assert "Its peak memory was 30 GiB" in sigkill(memory(), memory(), rss=30 * GIB).text


ON_MACHINE = "on this machine during the attempt (2 times)"
BLIND = "counters cannot be read here"


@pytest.mark.parametrize(
    ("before", "after", "rss", "suspect", "sure", "words"),
    [
        # as sure as the worker was big
        (memory(None, 4), memory(None, 6), 20 * GIB, "oom", "likely", ON_MACHINE),
        (memory(None, 4), memory(None, 6), 1 * GIB, "oom", "possible", ON_MACHINE),
        (memory(None, 4), memory(None, 6), 0, "oom", "possible", ON_MACHINE),
        # elsewhere on the machine
        (memory(0, 4), memory(0, 5), 0, "outside", "likely", "cgroup (but 1 on this machine)"),
        # the worker was moved to a fresh cgroup meanwhile
        (memory(5, 5), memory(0, 5), 0, "outside", "certain", "counts no OOM kill"),
        (memory(None, None), memory(None, None), 31 * GIB, "oom", "possible", BLIND),
        (memory(None, None), memory(None, None), 1 * GIB, "outside", "possible", BLIND),
        (Memory(), Memory(), 0, "outside", "possible", BLIND),
    ],
)
def test_other_sigkills(before, after, rss, suspect, sure, words):
    found = sigkill(before, after, rss)
    assert (found.suspect, found.sure) == (suspect, sure)
    assert words in found.text
    assert ("peak memory" in found.text) is bool(rss)


def test_fewer_oom_kills_than_dead_workers_is_only_likely():
    found = sigkill(memory(2), memory(3), killed=1)
    assert (found.suspect, found.sure) == ("oom", "likely")


@pytest.mark.parametrize(
    ("said", "sure"),
    [
        ("CalledProcessError: Command died with <Signals.SIGKILL: 9>.", "certain"),
        ("ValueError: no", "possible"),
    ],
)
def test_an_oom_kill_below_a_worker_that_failed_then(said, sure):
    after = memory(1, limit=8 * GIB)
    found = explained(1, before=memory(0), after=after, said=said)
    assert (found.suspect, found.sure) == ("oom", sure)
    assert "The kernel's OOM killer struck in this cgroup" in found.text


@pytest.mark.parametrize(
    ("free", "sure", "words"),
    [
        (1 << 20, "likely", "/dev/shm has 1.0 MiB of 64 MiB free"),
        (60 << 20, "possible", "Now /dev/shm has 60 MiB of 64 MiB free."),
        (None, "possible", "a mapped file was cut short"),
    ],
)
def test_sigbus_is_as_sure_as_shared_memory_is_full(free, sure, words):
    after = Memory(shm_total=64 << 20, shm_free=free)
    found = explained(-signal.SIGBUS, after=after)
    assert (found.suspect, found.sure) == ("itself", sure)
    assert words in found.text
    assert ("--shm-size" in found.text) is (sure == "likely")


@pytest.mark.parametrize(
    ("signum", "suspect", "word"),
    [
        (signal.SIGSEGV, "itself", "native code"),
        (signal.SIGABRT, "itself", "aborted"),
        (signal.SIGFPE, "itself", "division"),
        (signal.SIGPIPE, "itself", "closed"),
        (signal.SIGXCPU, "itself", "ulimit -t"),
        (signal.SIGXFSZ, "itself", "ulimit -f"),
        (signal.SIGTERM, "outside", "another process did"),
        (signal.SIGINT, "outside", "another process did"),
    ],
)
def test_signals_get_a_helpful_sentence(signum, suspect, word):
    found = explained(-signum)
    assert found.suspect == suspect
    assert word in found.text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (126, "not executable"),
        (127, "command not found"),
        (137, "128 + 9: a child of it died of SIGKILL. That alone is no proof"),
        (139, "128 + 11: a child of it died of SIGSEGV."),
    ],
)
def test_statuses_of_shells_are_read(status, words):
    found = explained(status)
    assert found.sure == "possible"
    assert words in found.text


@pytest.mark.parametrize("status", [0, 1, 125, 128, 255, -signal.SIGRTMAX])
def test_plain_statuses_and_unknown_signals_speak_for_themselves(status):
    assert explained(status) is None


# Reading: trees made like those of the kernel's documentation.


def tree(root, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_cgroup_v2_is_read_with_the_smallest_limit_above(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job\n",
            "dev/shm/x": "",
            "proc/vmstat": "nr_free_pages 1\noom_kill 9\n",
            "proc/meminfo": "MemTotal:       1024 kB\nMemFree: 1 kB\n",
            "sys/fs/cgroup/user/memory.max": "500000\n",
            "sys/fs/cgroup/user/job/memory.max": "max\n",
            "sys/fs/cgroup/user/job/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n",
        },
    )
    found = read_memory(root)
    assert (found.cgroup_kills, found.machine_kills) == (3, 9)
    assert (found.limit, found.total) == (500000, 1024 * 1024)
    assert found.shm_free is not None


def test_cgroup_v1_is_read(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/unified/cgroup.procs": "",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "1000000\n",
            "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 2\n",
        },
    )
    found = read_memory(root)
    assert (found.cgroup_kills, found.limit) == (2, 1000000)
    assert found.machine_kills is found.shm_free is None


def test_container_that_sees_its_own_cgroup_as_the_root(tmp_path):
    root = tree(
        tmp_path,
        {
            # the host's path, of which nothing is mounted here
            "proc/self/cgroup": "0::/kubepods/pod1/c1\n",
            "sys/fs/cgroup/memory.max": "7000\n",
            "sys/fs/cgroup/memory.events": "oom_kill 1\n",
        },
    )
    found = read_memory(root)
    assert (found.cgroup_kills, found.limit) == (1, 7000)
