"""What lllaunch, and torchrun, must say of the failures in failures.py for a point.

Cause, first rank and place in the code are looked for in what a user sees; a fourth point is for
the exit code (a failure, or none, without somebody who ends a hang), a fifth for nothing that is
false or noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("failures.py")
WATCHED: Mapping[str, Any] = {
    "preload": ["torch"],
    "watchdog": {"stall": "5s"},
    "grace_period": "5s",
}

# Frames between the launcher and the code of a user. Torchrun has none: it ends with its own.
NOISE = r"/lllaunch/\w+(/\w+)?\.py\b|<frozen importlib"
_PEER = r"Root cause: .*typically caused by a remote worker crashing"


@dataclass(frozen=True)
class Unlisted:
    """One failure of failures.py.

    Attributes:
        name: of its function.
        title: what goes wrong.
        cause: a regular expression for what lllaunch says.
        rank: the one that it began with; None for none.
        theirs: the same for torchrun, in its own words.
        place: whether there is a line to name, that with `# here: NAME`.
        fails: whether the run has failed in the end.
        false: what would be wrong to say.
        disk: whether it needs a small one, at ``small``.
        kill: whether rank 2 is ended by SIGTERM from outside.
    """

    name: str
    title: str
    cause: str
    rank: int | None
    theirs: str
    place: bool = True
    fails: bool = True
    false: str = ""
    disk: bool = False
    kill: bool = False
    node: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """The line that should be named."""
        lines = SCRIPT.read_text().splitlines()
        return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# here: {self.name}"))


def _raised(name: str, title: str, text: str, rank: int = 1) -> Unlisted:
    """An exception, which both launchers show."""
    return Unlisted(name, title, rf"raised {text}", rank, text)


UNLISTED = (
    Unlisted(
        *("timeout", "the process group's own timeout"),
        *(r"Rank 2 never came to all_reduce #2", 2, r"rank 2.*never|did not come"),
    ),
    Unlisted(
        *("straggler", "a straggler: 1 s a step, the others 0.1 s"),
        *(r"rank 1 .*(slow|last|behind)", 1, r"rank 1 .*(slow|last|behind)"),
        fails=False,
        false=r"stalled|never came",
    ),
    Unlisted(
        *("subgroup", "a member of a subgroup leaves out its all_reduce"),
        *(r"Rank 2 never came to all_reduce #1 of a group of ranks 1-3", 2, "never came"),
    ),
    Unlisted(
        *("dtype", "float64 in one rank"),
        r"Rank 2 called all_reduce #2 with float64 \[4\], the others with float32",
        *(2, r"rank 2.*float64"),
        false=r"with 2 elements",
    ),
    Unlisted(
        *("broadcast", "a broadcast in a subgroup, one member sleeps"),
        *(r"Rank 2 never came to broadcast #1 of a group of ranks 1-3", 2, "never came"),
    ),
    Unlisted(
        *("one_more", "one operation too many, the others end well"),
        *(r"called all_reduce #6 .*when\s+ranks 0-2 had ended", 3, "rank 3.*too many"),
    ),
    Unlisted(
        *("other_kind", "a broadcast where the others call all_reduce"),
        *(r"(?s)all_reduce #2 at .*rank 1 in broadcast #2", 1, "rank 1.*broadcast"),
    ),
    Unlisted(
        *("receive", "recv of what nobody sends"),
        *(r"Rank 0 never came to barrier #1", 0, "never came|recv"),
    ),
    Unlisted(
        *("monitored", "monitored_barrier without one rank"),
        *(r"kept others waiting in a collective operation", 2, "Rank 2 failed to pass"),
    ),
    Unlisted(
        *("finally_gathers", "an exception, and a collective in `finally`"),
        *(r"ValueError: label 11", 1, r"ValueError: label 11"),
    ),
    _raised("save_on_rank_0", "rank 0 cannot save", r"OSError: \[Errno 28\] No space left", 0),
    Unlisted(
        *("cpu_limit", "ulimit -t, SIGKILL by the kernel"),
        *(r"used up the 2\.0 s of CPU time that a limit allows", 1, r"CPU time|ulimit"),
        place=False,
        false=r"certain\): The launcher did not send it",
    ),
    Unlisted(
        *("cpu_signal", "SIGXCPU", r"died of SIGXCPU\n.*CPU time that a\s+limit", 1, "SIGXCPU"),
    ),
    Unlisted(
        *(
            "file_size",
            "SIGXFSZ",
            r"died of SIGXFSZ\n.*beyond the size that a\s+limit",
            1,
            "SIGXFSZ",
        ),
        place=False,
    ),
    _raised("descriptors", "no descriptor is left", r"OSError: \[Errno 24\] Too many open files"),
    _raised("address_space", "ulimit -v", "MemoryError"),
    Unlisted(
        *("full_disk", "torch.save on a full disk"),
        *(
            r"probably\s+the\s+disk\s+that\s+it\s+is\s+on\s+is\s+full",
            1,
            "No space left|disk is full",
        ),
        false=r"RuntimeError: \. ",
        disk=True,
    ),
    Unlisted(
        *("truncated", "a mapped file is cut short"),
        *(r"died of SIGBUS\n[^|]*mapped file was cut short", 1, "SIGBUS"),
    ),
    Unlisted(
        *("pool", "a worker of multiprocessing.Pool is killed"),
        *(r"worker of the [Pp]ool", 1, r"worker of the [Pp]ool"),
    ),
    Unlisted(
        *("thread_lives", "an exception while a thread lives on"),
        *(r"raised ValueError: label 11", 1, r"ValueError: label 11"),
    ),
    Unlisted(
        *("abort", "os.abort() in a thread"),
        *(r"died of SIGABRT\n.*It aborted itself: os\.abort", 1, "SIGABRT"),
    ),
    _raised("future", "an exception of a thread pool", "IndexError: list index out of range"),
    Unlisted(
        *("loader_segfault", "a segfault in a DataLoader worker"),
        *(r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault", 1),
        r"is killed by signal: Segmentation fault",
    ),
    _raised("loader_raises", "a DataLoader worker raises", "ValueError: image 9 has no pixels"),
    _raised("loader_pickles", "a dataset that cannot be pickled", "AttributeError: Can't pickle"),
    _raised("child_fails", "a subprocess fails", "CalledProcessError: .*exit status 4"),
    Unlisted(
        *("file_lock", "a lock on a file that one rank keeps"),
        *(r"Root cause: rank \d .*stalled", None, "flock.*wait"),
    ),
    _raised("recursion", "endless recursion", "RecursionError: maximum recursion depth"),
    Unlisted(
        *("exits_0", "exit(0) in the middle of training"),
        *(r"ended with success after .*it left while they were in all_reduce #2", 1),
        r"rank 1.*(success|left)",
        false=_PEER,
    ),
    Unlisted(
        "exits_hard", "os._exit(7)", "exited with status 7", 2, r"exitcode +: 7 ", place=False
    ),
    Unlisted(
        *("exits_with_text", "sys.exit with a text"),
        *(r"called sys\.exit\('the tokenizer has", 2, "the tokenizer has 32000"),
    ),
    _raised("chained", "an exception from another", "RuntimeError: the index of shard 7 is broken"),
    _raised("group", "an ExceptionGroup", r"ExceptionGroup: 2 uploads failed"),
    Unlisted(
        *("anomaly", "NaN found by anomaly mode"),
        *(r"Function 'SqrtBackward0' returned nan", 1, r"Function 'SqrtBackward0' returned nan"),
    ),
    Unlisted(
        *("no_cuda", "set_device with a torch for the CPU"),
        *(r"is built without CUDA", 1, r"without CUDA|not compiled with CUDA"),
    ),
    Unlisted(
        *("address", "the script sets MASTER_ADDR"),
        *(r"trainer-0\.invalid", None, r"trainer-0\.invalid"),
    ),
    Unlisted(
        *("missing_file", "a file is missing in all ranks"),
        r"raised FileNotFoundError: .*'data/train\.json'",
        *(None, r"FileNotFoundError: .*'data/train\.json'"),
    ),
    Unlisted(
        *("not_a_number", "the loss is NaN from step 12 on"),
        *(r"rank 1 says that loss is nan since step 12", 1, "nan"),
        *(False, False),
    ),
    Unlisted(
        *("terminated", "SIGTERM to one worker from outside"),
        *(r"died of SIGTERM\n.*another process did", 2, "SIGTERM"),
        kill=True,
    ),
    Unlisted(
        *("ignores", "a worker ignores SIGTERM while another fails"),
        *(r"(?s)SIGTERM is ignored by rank 3.*raised ValueError: label 11", 1),
        r"ValueError: label 11",
    ),
    Unlisted(
        *("compiles", "12 s of native code in one rank", "succeeded", None, ""),
        *(False, False),
        false="stalled|never came",
    ),
    Unlisted(
        *("downloads", "12 s of a download in one rank", "succeeded", None, ""),
        *(False, False),
        false="stalled|never came",
    ),
    Unlisted(
        *("uneven", "one rank has a batch less, and waits in a barrier"),
        *(r"(?s)all_reduce #6 .*rank 3 in barrier|[Rr]ank 3 .*barrier", 3, "rank 3.*barrier"),
    ),
    Unlisted(
        *("loader_hangs", "a DataLoader worker hangs"),
        *(r"Rank 1 never came to all_reduce #1", 1, r"rank 1.*never|DataLoader"),
    ),
    Unlisted(
        *("order", "two operations in another order"),
        *(r"(?s)all_reduce #2 .*rank 2 in all_gather|[Rr]ank 2 .*all_gather", 2, "rank 2.*gather"),
    ),
    Unlisted(
        *("thread_dies", "a thread raises, and its queue is waited for"),
        *(r"ValueError: shard 7 is empty", 1, r"ValueError: shard 7 is empty"),
    ),
    Unlisted(
        *("awaits", "a coroutine waits for ever"),
        *(r"Rank 1 never came to all_reduce #1", 1, r"rank 1.*never"),
    ),
    Unlisted(
        *("killed_by_child", "a child kills the worker"),
        *(r"(?s)died of SIGKILL\n.*another\s+process\s+did", 2, "SIGKILL"),
        place=False,
    ),
    Unlisted(
        *("native_recursion", "the stack of native code is full"),
        *(r"died of SIGSEGV", 1, "SIGSEGV"),
    ),
    Unlisted(
        *("world_size", "a world of five, which has four"),
        *(r"init_process_group", None, r"4/5 clients|init_process_group"),
    ),
    Unlisted(
        *("fifo", "a named pipe that nobody writes to"),
        *(r"Rank 1 never came to all_reduce #1", 1, r"rank 1.*never"),
    ),
    Unlisted(*("alarm", "SIGALRM", r"died of SIGALRM", 1, "SIGALRM")),
)
