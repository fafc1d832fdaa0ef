"""What composing a job yields, and how that crosses the socket between a job and its launcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lllaunch.sweep.policy import Retries
from lllaunch.sweep.records import Composed
from lllaunch.sweep.resources import Lease, Need


class Prepared(NamedTuple):
    """A job that is composed, and what its launcher has to know of it.

    Attributes:
        need: what it needs to run.
        overrides: its task overrides, redacted.
        directory: where its result.json will be; relative to the sweep's directory or absolute.
        fingerprint: `lllaunch.sweep.fingerprint.job_key`, or None.
        config: what that was made from, plain data for the journal, or None if it is not kept.
        retries: how often it is tried again, or None for what the sweep says.
        payload: whatever the job needs to run; it stays in the job's process.
    """

    need: Need = Need()
    overrides: tuple[str, ...] = ()
    directory: str = ""
    fingerprint: str | None = None
    config: Mapping[str, Any] | None = None
    retries: Retries | None = None
    payload: object = None


class Broken(NamedTuple):
    """A job that cannot run.

    Attributes:
        exit_code: what a run of this config alone would end with: 1 or 2.
        why: for people.
        overrides: its task overrides, redacted.
        directory: as in `Prepared`.
    """

    exit_code: int
    why: str
    overrides: tuple[str, ...] = ()
    directory: str = ""


class Done(NamedTuple):
    """A job that need not run: it had succeeded in an earlier sweep."""


Answer = Prepared | Broken | Done | None
"""What ``prepare`` returns; None if there are no more jobs."""


def encode(answer: Answer) -> dict[str, Any]:
    """Returns an answer as JSON, without the payload."""
    if answer is None:
        return {"answer": "none"}
    if isinstance(answer, Done):
        return {"answer": "done"}
    if isinstance(answer, Broken):
        return {"answer": "broken", **answer._asdict()}
    fields = answer._asdict()
    del fields["payload"]
    return {"answer": "prepared", **fields}


def decode(message: Mapping[str, Any]) -> Answer:
    """Returns the answer of a message that `encode` made."""
    fields = dict(message)
    kind = fields.pop("answer")
    if kind == "none":
        return None
    if kind == "done":
        return Done()
    fields["overrides"] = tuple(fields["overrides"])
    if kind == "broken":
        return Broken(**fields)
    retries = fields.pop("retries")
    return Prepared(
        **{**fields, "need": Need(*fields["need"])},
        retries=None if retries is None else Retries(*retries),
    )


def record_of(number: int, answer: Prepared | Broken, directory: str) -> Composed:
    """Returns what the journal says of a composed job.

    Args:
        number: of the job.
        answer: what composing it yielded.
        directory: as the journal has it.
    """
    if isinstance(answer, Broken):
        return Composed(number, answer.overrides, directory, None)
    return Composed(number, answer.overrides, directory, answer.fingerprint, answer.config)


def encode_lease(lease: Lease) -> dict[str, Any]:
    """Returns the message that lets a job begin; the descriptors of its locks go with it."""
    return {"start": [list(lease.gpus), list(lease.cpus)]}


def decode_lease(message: Mapping[str, Any]) -> Lease:
    """Returns the lease of a message that `encode_lease` made."""
    gpus, cpus = message["start"]
    return Lease(tuple(gpus), tuple(cpus))
