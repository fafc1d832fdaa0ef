"""How workers end, for tests that make or compare what became of them."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from lllaunch.documents import signal_name
from lllaunch.run.result import Ended, WorkerResult

T = TypeVar("T", bound=WorkerResult)


def ended_by_launcher(code: int, *signums: int, waited_for: tuple[int, ...] = ()) -> Ended:
    """A worker that the launcher ended."""
    return Ended(exitcode=code, sent=tuple(map(signal_name, signums)), waited_for=waited_for)


def placed(rank: int, worker: T, **fields: Any) -> T:
    """The worker of a rank that ended so."""
    return replace(worker, local_rank=rank, rank=rank, **fields)


def own(worker: WorkerResult) -> WorkerResult:
    """A worker with nothing but how it ended."""
    names = worker.__struct_fields__[len(WorkerResult.__struct_fields__) :]
    fields = {name: getattr(worker, name) for name in names}
    if isinstance(worker, Ended):
        fields["exitcode"] = worker.exitcode
    return type(worker)(**fields)
