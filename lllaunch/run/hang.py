"""What the watchdog found in an attempt, in terms of ranks among all workers. Pure.

Imported only when something was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lllaunch.watchdog.findings import Finding, Stalled, TimedOut, is_of_all, lasted, suspects
from lllaunch.watchdog.stacks.blame import waits
from lllaunch.watchdog.stacks.frames import Waits

if TYPE_CHECKING:
    from lllaunch.run.records import AttemptRecord, WorkerRecord
    from lllaunch.supervisor.machine import GroupStacks
    from lllaunch.watchdog.collectives import Disagreement
    from lllaunch.watchdog.stacks.frames import RankStack

_STOPPED = "Tt"


@dataclass(frozen=True)
class Hang:
    """What the watchdog found, and where the workers stood then.

    All ranks but those within ``finding`` are ranks among all workers.

    Attributes:
        finding: what it found; its ranks are local.
        time_ns: when, nanoseconds since the epoch.
        since_ns: when that had begun, where the finding tells; nanoseconds since the epoch.
        named: ranks that the finding names; none if it is about all.
        hung: those that hang by themselves, as far as can be told.
        waiting: those that only wait for them.
        asleep: those in uninterruptible sleep.
        stopped: those that a signal stopped.
        left: those that had ended with success, by rank, with the seconds that they had run; none
            unless all others surely wait.
        stacks: where they stood, by rank; empty if that is not known.
        nodes: of several, the one that each of those who hang is on, by rank.
        collectives: the operation that they do not agree on, or None.
    """

    finding: Finding
    time_ns: int
    since_ns: int | None = None
    named: tuple[int, ...] = ()
    hung: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    asleep: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    left: Mapping[int, float] = field(default_factory=dict)
    stacks: Mapping[int, RankStack] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    collectives: Disagreement | None = None

    @property
    def blamed(self) -> tuple[int, ...]:
        """Ranks that the attempt failed because of; none if all did, or nobody can tell.

        When time is over, all have taken it: who happens not to wait at that moment need not hang.
        """
        return () if isinstance(self.finding, TimedOut) else self.hung or tuple(self.left)


def hang_of(record: AttemptRecord) -> Hang | None:
    """Returns what the watchdog found in an attempt, None if it found nothing."""
    finding = record.finding
    if finding is None:
        return None
    numbers = {worker.local_rank: worker.rank for worker in record.workers}

    def among_all(local_ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers.get(rank, rank) for rank in local_ranks))

    moved = (replace(each, rank=numbers.get(each.rank, each.rank)) for each in record.stacks)
    stacks = {stack.rank: stack for stack in moved}
    asleep = {rank for rank, stack in stacks.items() if stack.state == "D"}
    stopped = {rank for rank, stack in stacks.items() if stack.state and stack.state in _STOPPED}
    if isinstance(finding, Stalled):
        asleep.update(among_all(finding.asleep))
        stopped.update(among_all(finding.stopped))
    seconds = lasted(finding)
    blame = record.blame
    left = _left(record) if blame is not None and not blame.hung else {}
    hung = blame.hung if blame is not None and blame.hung else _without_stacks(finding)
    if left:
        hung = ()
    hang = Hang(
        finding=finding,
        time_ns=record.fired_ns,
        since_ns=None if seconds is None else record.fired_ns - int(seconds * 1e9),
        named=among_all(suspects(finding)),
        hung=among_all(hung),
        waiting=tuple(stacks) if left else among_all(blame.waiting) if blame is not None else (),
        asleep=tuple(sorted(asleep)),
        stopped=tuple(sorted(stopped)),
        left=left,
        stacks=dict(sorted(stacks.items())),
        collectives=blame.collectives if blame is not None else None,
    )
    return hang if record.group_stacks is None else _of_all_nodes(hang, record.group_stacks)


def _of_all_nodes(hang: Hang, group: GroupStacks) -> Hang:
    """Returns the same with what is known of the workers of other nodes."""
    others = {stack.rank: stack for stack in group.stacks}
    blame = group.blame
    return replace(
        hang,
        hung=blame.hung if blame is not None else hang.hung,
        waiting=blame.waiting if blame is not None else hang.waiting,
        stacks=dict(sorted({**others, **hang.stacks}.items())),
        nodes=dict(group.nodes),
        collectives=blame.collectives if blame is not None else hang.collectives,
    )


def _left(record: AttemptRecord) -> dict[int, float]:
    """Returns who had ended with success while all others wait for somebody, and after how long."""
    if not record.stacks or any(waits(stack.frames) is not Waits.SURELY for stack in record.stacks):
        return {}
    return {
        worker.rank: max(0, worker.exited.time_ns - _begun(worker, record)) / 1e9
        for worker in record.workers
        if worker.exited is not None and worker.exited.exitcode == 0 and not worker.sent
    }


def _begun(worker: WorkerRecord, record: AttemptRecord) -> int:
    return worker.started.time_ns if worker.started is not None else record.started_ns


def _without_stacks(finding: Finding) -> tuple[int, ...]:
    """Returns who hangs as far as the finding alone tells: local ranks."""
    found = suspects(finding)
    if is_of_all(finding) and len(found) > 1:
        # All had to get nowhere: one may hang and the others wait for it.
        return ()
    return found
