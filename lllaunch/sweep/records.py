"""What a sweep's journal says, and each record as one line of JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from lllaunch.run.events import isoformat
from lllaunch.sweep.resources import Lease

VERSION = 1
"""Version of the journal and of its fingerprints; grows when either changes its meaning."""


class Header(NamedTuple):
    """The first record: a sweep was begun.

    Attributes:
        sweep: its id.
        lllaunch: version of the launcher.
        command: the overrides of the command line, redacted.
        version: of the journal.
    """

    sweep: str
    lllaunch: str
    command: tuple[str, ...] = ()
    version: int = VERSION


class Resumed(NamedTuple):
    """The sweep is gone on with, by another launcher. Its fields are those of `Header`."""

    lllaunch: str
    command: tuple[str, ...] = ()


class Composed(NamedTuple):
    """A job's config is known; the job is not started before this is on the disk.

    Attributes:
        job: its number.
        overrides: its task overrides, redacted.
        directory: where its result.json will be; relative to the sweep's if it is in it.
        fingerprint: `lllaunch.sweep.fingerprint.job_key`; None if it could not be composed.
        config: what that was made from, or None if it is not kept.
    """

    job: int
    overrides: tuple[str, ...]
    directory: str
    fingerprint: str | None
    config: Mapping[str, Any] | None = None


class Started(NamedTuple):
    """A job was started.

    Attributes:
        job: its number.
        retry: 0 for its first start in a sweep or resume, then 1, 2, ...
        lease: what it holds.
        pid: of its launcher, or None.
    """

    job: int
    retry: int = 0
    lease: Lease = Lease()
    pid: int | None = None


class Result(NamedTuple):
    """What became of a job.

    Attributes:
        state: as in its result.json: ``succeeded``, ``failed``, ``signalled``, ``error``.
        exit_code: its launcher's, or None where that is not known.
        root_cause: the first failure in one line, or an empty string.
        seconds: how long the run took, or None where that is not known.
        return_value: rank 0's, as JSON text, if it is short; or None.
    """

    state: str
    exit_code: int | None = None
    root_cause: str = ""
    seconds: float | None = None
    return_value: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the job need not run again."""
        return self.state == "succeeded"


class Ended(NamedTuple):
    """A job ended, or was found to have ended.

    Attributes:
        job: its number.
        retry: that of its start.
        result: what became of it.
    """

    job: int
    retry: int
    result: Result


class Skipped(NamedTuple):
    """A job is not going to be started by this launcher, and why."""

    job: int
    reason: str


class Over(NamedTuple):
    """The launcher is done with the jobs that it had, and with what exit code.

    More jobs may follow: sweepers that ask for one batch of jobs after another.
    """

    exit_code: int


# No calendar of Python's goes further.
_YEAR_10000_NS = 253_402_300_800 * 10**9

Record: TypeAlias = Header | Resumed | Composed | Started | Ended | Skipped | Over


class Entry(NamedTuple):
    """A record of the journal, and when it was made, nanoseconds since the epoch."""

    time_ns: int
    record: Record


_TYPES: dict[type[Any], str] = {
    Header: "sweep",
    Resumed: "resumed",
    Composed: "composed",
    Started: "started",
    Ended: "ended",
    Skipped: "skipped",
    Over: "over",
}


class UnknownVersion(ValueError):
    """The journal is of another lllaunch: its records cannot be understood here.

    Attributes:
        version: what it says of itself.
        lllaunch: the version of the launcher that wrote it, or an empty string.
    """

    def __init__(self, version: int, lllaunch: str) -> None:
        super().__init__(version, lllaunch)
        self.version = version
        self.lllaunch = lllaunch


def encode(record: Record, time_ns: int) -> bytes:
    """Returns a record as one line of JSON, newline included.

    Args:
        record: the record.
        time_ns: when it was made, nanoseconds since the epoch.

    Raises:
        TypeError, ValueError: it holds something that is not JSON.
    """
    fields: dict[str, Any] = record._asdict()
    if isinstance(record, Started):
        fields["lease"] = record.lease._asdict()
    elif isinstance(record, Ended):
        fields["result"] = plain_result(record.result)
    head = {"time": isoformat(time_ns), "time_ns": time_ns, "type": _TYPES[type(record)]}
    text = json.dumps({**head, **fields}, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def plain_result(result: Result) -> dict[str, Any]:
    """Returns a result as plain data; ``return_value`` is in it only if there is one."""
    fields = result._asdict()
    text = fields.pop("return_value")
    return fields if text is None else {**fields, "return_value": json.loads(text)}


def decode(line: bytes) -> Entry | None:
    """Reads a line of the journal.

    Args:
        line: one line; its newline may be left out.

    Returns:
        the record, None if its type is not known: a later lllaunch may write more of them.

    Raises:
        UnknownVersion: it is a `Header` of another version.
        ValueError: it is not a record; says why.
    """
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of what was read
    read = _READERS.get(_get(fields, "type", str))
    time_ns = _get(fields, "time_ns", int)
    if not 0 <= time_ns < _YEAR_10000_NS:
        raise ValueError("its 'time_ns' is not a time")
    return None if read is None else Entry(time_ns, read(fields))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _get(fields: Mapping[str, Any], name: str, *types: type[Any]) -> Any:
    """Returns a field, which may be left out if it may be None."""
    value = fields.get(name)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"its {name!r} is {'missing' if value is None else 'not valid'}")
    return value


_NONE = type(None)


def _job(fields: Mapping[str, Any], name: str = "job") -> int:
    number: int = _get(fields, name, int)
    if number < 0:
        raise ValueError(f"its {name!r} is not valid")
    return number


def _list(fields: Mapping[str, Any], name: str, kind: type[Any]) -> tuple[Any, ...]:
    values = _get(fields, name, list)
    if not all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
        raise ValueError(f"its {name!r} is not valid")
    return tuple(values)


def _header(fields: Mapping[str, Any]) -> Header:
    version = _get(fields, "version", int)
    if version != VERSION:
        raise UnknownVersion(version, str(fields.get("lllaunch", "")))
    texts = (_get(fields, "sweep", str), _get(fields, "lllaunch", str))
    return Header(*texts, _list(fields, "command", str), version)


def _resumed(fields: Mapping[str, Any]) -> Resumed:
    return Resumed(_get(fields, "lllaunch", str), _list(fields, "command", str))


def _composed(fields: Mapping[str, Any]) -> Composed:
    return Composed(
        _job(fields),
        _list(fields, "overrides", str),
        _get(fields, "directory", str),
        _get(fields, "fingerprint", str, _NONE),
        _get(fields, "config", dict, _NONE),
    )


def _started(fields: Mapping[str, Any]) -> Started:
    lease = _get(fields, "lease", dict)
    held = Lease(_list(lease, "gpus", str), _list(lease, "cpus", int))
    return Started(_job(fields), _job(fields, "retry"), held, _get(fields, "pid", int, _NONE))


def _ended(fields: Mapping[str, Any]) -> Ended:
    result = _get(fields, "result", dict)
    value = json.dumps(result["return_value"]) if "return_value" in result else None
    found = Result(
        _get(result, "state", str),
        _get(result, "exit_code", int, _NONE),
        _get(result, "root_cause", str),
        _get(result, "seconds", int, float, _NONE),
        value,
    )
    return Ended(_job(fields), _job(fields, "retry"), found)


def _skipped(fields: Mapping[str, Any]) -> Skipped:
    return Skipped(_job(fields), _get(fields, "reason", str))


def _over(fields: Mapping[str, Any]) -> Over:
    return Over(_get(fields, "exit_code", int))


_READERS: dict[str, Callable[[Mapping[str, Any]], Record]] = {
    "sweep": _header,
    "resumed": _resumed,
    "composed": _composed,
    "started": _started,
    "ended": _ended,
    "skipped": _skipped,
    "over": _over,
}
