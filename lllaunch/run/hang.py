"""What the watchdog found in an attempt, in terms of ranks among all workers. Pure.

Imported only when something was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lllaunch.run.result import Hang
from lllaunch.watchdog.findings import Stalled, is_of_all, lasted, suspects
from lllaunch.watchdog.stacks.blame import waits
from lllaunch.watchdog.stacks.frames import Waits

if TYPE_CHECKING:
    from lllaunch.run.records import AttemptRecord
    from lllaunch.supervisor.machine import GroupStacks


def hang_of(record: AttemptRecord) -> Hang | None:
    """Return what the watchdog found in an attempt, None if it found nothing."""
    finding = record.finding
    if finding is None:
        return None
    numbers = {worker.local_rank: worker.rank for worker in record.workers}

    def among_all(local_ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers.get(rank, rank) for rank in local_ranks))

    moved = (replace(each, rank=numbers.get(each.rank, each.rank)) for each in record.stacks)
    stacks = {stack.rank: stack for stack in moved}
    asleep = {rank for rank, stack in stacks.items() if stack.state == "D"}
    stopped = {rank for rank, stack in stacks.items() if stack.state in ("T", "t")}
    if isinstance(finding, Stalled):
        asleep.update(among_all(finding.asleep))
        stopped.update(among_all(finding.stopped))
    seconds = lasted(finding)
    blame = record.blame
    left = _left(record) if blame is not None and not blame.hung else {}
    hung: tuple[int, ...] = ()
    if blame is not None and blame.hung:
        hung = blame.hung
    elif not left and not (is_of_all(finding) and len(suspects(finding)) > 1):
        # Where all had to get nowhere, one may hang and the others wait for it.
        hung = suspects(finding)
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
        standing=tuple(stack for _, stack in sorted(stacks.items())),
        collectives=blame.collectives if blame is not None else None,
    )
    return hang if record.group_stacks is None else _of_all_nodes(hang, record.group_stacks)


def _of_all_nodes(hang: Hang, group: GroupStacks) -> Hang:
    """Return the same with what is known of the workers of other nodes."""
    others = {stack.rank: stack for stack in group.stacks}
    blame = group.blame
    return replace(
        hang,
        hung=blame.hung if blame is not None else hang.hung,
        waiting=blame.waiting if blame is not None else hang.waiting,
        standing=tuple(stack for _, stack in sorted({**others, **hang.stacks}.items())),
        nodes=dict(group.nodes),
        collectives=blame.collectives if blame is not None else hang.collectives,
    )


def _left(record: AttemptRecord) -> dict[int, float]:
    """Return who had ended with success while all others wait for somebody, and after how long."""
    if not record.stacks or any(waits(stack.frames) is not Waits.SURELY for stack in record.stacks):
        return {}
    return {
        worker.rank: record.ran_seconds(worker)
        for worker in record.workers
        if worker.exited is not None and worker.exited.exitcode == 0 and not worker.sent
    }
