"""JSON of any make: records, and files that are half written, or of another version, or not ours.

A `Record` is what is written and what is read. Of what is read fields that are not known are passed
over, missing ones have their defaults, and wrong ones are one message: ``expected int, got str at
$.exit_code``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, overload

import msgspec

from lllaunch.files import read_bytes
from lllaunch.text import shorten, visible

T = TypeVar("T")

if TYPE_CHECKING:
    Time: TypeAlias = int
    RunPath: TypeAlias = str
    SignalNumber: TypeAlias = int
    Text: TypeAlias = str
    Number: TypeAlias = float
    JsonText: TypeAlias = str | None
else:
    # msgspec asks how to read what it does not know

    class Time(int):
        """Nanoseconds since the epoch, 0 for none. In JSON ISO 8601 in UTC."""

    class RunPath(str):
        """A path, empty for none. In JSON relative to the run's directory where it is below it."""

    class SignalNumber(int):
        """The number of a signal. In JSON its name."""

    class Text(str):
        """A text, empty for none. In JSON null then."""

    class Number(float):
        """A number. In JSON text if it is none that JSON has: ``nan``, ``inf``, ``-inf``."""

    class JsonText(str):
        """JSON as text, None for none. In JSON what it stands for."""


class Record(msgspec.Struct, frozen=True):
    """What is written as a JSON object, and read back."""

    DERIVED: ClassVar[tuple[str, ...]] = ()
    BESIDE: ClassVar[frozenset[str]] = frozenset()


class Said(Record, frozen=True, tag=True):
    """One of several things that may be the case; its text is the predicate of a sentence."""

    DERIVED = ("text",)

    @property
    def text(self) -> str:
        """What it says."""
        return str(self)


def load_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object that a file holds, None if there is no such file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else; says what.
    """
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = _loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - of what was read
    return document


def as_object(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object that a line holds, None if it is torn or holds something else."""
    with contextlib.suppress(ValueError, RecursionError):
        record = _loads(line)
        return record if isinstance(record, dict) else None
    return None


def last_line(path: str, window: int, read: Callable[[bytes], T | None]) -> T | None:
    """Return what the last whole line says that says something in the last bytes of a file."""
    try:
        lines = read_bytes(path, window).split(b"\n")
    except (OSError, ValueError):
        return None
    return next((found for line in reversed(lines[:-1]) if (found := read(line)) is not None), None)


def _loads(data: bytes | str) -> Any:
    # NaN and Infinity are not JSON
    return json.loads(data, parse_constant=lambda _: None)


def isoformat(time_ns: int) -> str:
    """Return a time as ISO 8601 in UTC with microseconds: ``2024-01-31T12:00:00.000000Z``."""
    from datetime import datetime  # noqa: PLC0415 - not every writer has a time

    # not by float division: a double holds nanoseconds since the epoch to some 200 ns only
    seconds, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def nanoseconds(moment: object) -> int | None:
    """Return an ISO 8601 time in UTC as nanoseconds since the epoch, None if it is none."""
    from datetime import datetime  # noqa: PLC0415 - not every reader wants a time

    if not isinstance(moment, str) or not moment.endswith("Z"):
        return None
    try:
        time = datetime.fromisoformat(f"{moment[:-1]}+00:00")
    except ValueError:
        return None
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000


def signal_name(signum: int) -> str:
    """Return ``SIGTERM`` for 15; ``signal 64`` where Python knows no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


# Writing


ABSENT = msgspec.UNSET  # stands where there is no value; null is one


def _write_path(path: str, root: str) -> str | None:
    if not path:
        return None
    relative = os.path.relpath(path, root) if root else path
    return path if relative.startswith(os.pardir) else relative


# By the names of the types above.
_WRITERS: Mapping[str, Callable[[Any, str], Any]] = {
    # an exit code or a signal has a name where it is made
    "int": lambda value, _: None if value is None else int(value),
    "Time": lambda value, _: isoformat(value) if value else None,
    "RunPath": _write_path,
    "SignalNumber": lambda value, _: None if value is None else signal_name(value),
    "Text": lambda value, _: value or None,
    "JsonText": lambda value, _: ABSENT if value is None else json.loads(value),
}


@functools.cache
def _fields_of(
    kind: type[msgspec.Struct], *, whole: bool
) -> tuple[tuple[str, str, Callable[[Any, str], Any] | None], ...]:
    """Return the fields of a record that are written: name, key in JSON, and what writes it.

    Their types are looked at as text: few of a record's types are there as long as it is written.
    """
    types: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        types |= getattr(base, "__annotations__", {})
    beside: frozenset[str] = getattr(kind, "BESIDE", frozenset())
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return tuple(
        (name, key, _WRITERS.get(types.get(name, "").removesuffix(" | None")))
        for name, key in names
        if whole or name not in beside
    )


class Plain:
    """Makes of records, and of all that stands in them, what JSON has.

    Every text is redacted, and paths are written relative to ``root``. Of what is in fields that
    are ``hidden`` only the number is said. Where types are ``named``, all fields are written.
    """

    def __init__(
        self,
        redact: Callable[[str], str] = str,
        root: str = "",
        hidden: frozenset[str] = frozenset(),
        *,
        named: bool = False,
    ) -> None:
        self._redact, self._root = redact, root
        self._hidden, self._named = hidden, named

    def __call__(self, value: Any) -> Any:
        """Return the same as plain data."""
        if isinstance(value, enum.Enum):
            return value.name
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, msgspec.Struct):
            return self._record(value)
        if isinstance(value, Mapping):
            return {str(self(key)): self._item(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_asdict"):
            ordered = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
            return [self(item) for item in ordered]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"<{len(value)} bytes>"
        if isinstance(value, BaseException):
            return self._redact(f"{type(value).__name__}: {value}")
        return self._object(value)

    def _record(self, value: msgspec.Struct) -> dict[str, Any]:
        kind = type(value)
        config = kind.__struct_config__
        found: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
        for each in () if self._named else getattr(kind, "DERIVED", ()):
            found[each] = self(getattr(value, each))
        for name, key, write in _fields_of(kind, whole=self._named):
            given = getattr(value, name)
            if config.omit_defaults and (given is None or given in ((), {})):
                continue
            if write is not None:
                given = write(given, self._root)
            if given is not ABSENT:
                found[key] = self._item(name, given)
        return found

    def _object(self, value: Any) -> Any:
        """Return a dataclass or a named tuple, or what another object is called."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
        elif hasattr(value, "_asdict"):
            names = list(value._fields)
        else:
            return f"<{type(value).__qualname__}>"
        found = {name: self._item(name, getattr(value, name, None)) for name in names}
        return {"type": type(value).__name__, **found} if self._named else found

    def _item(self, name: str, value: Any) -> Any:
        if name in self._hidden and value is not None:
            return f"<{len(value) if hasattr(value, '__len__') else 1} not shown>"
        return self(value)


def encode_record(value: Any) -> bytes:
    """Return a record, or what holds some, as a line of JSON without its end."""
    return json.dumps(Plain()(value)).encode()


# Reading


_LONE = re.compile(
    rb"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)


@overload
def as_record(value: object, kind: type[T], root: str = "") -> T: ...
@overload
def as_record(value: object, kind: object, root: str = "") -> Any: ...
def as_record(value: object, kind: Any, root: str = "") -> Any:
    """Return the record that plain data stands for; relative paths count from ``root``.

    Raises:
        ValueError: it is none; says what was expected, and where.
    """
    _known(kind)
    try:
        hook = functools.partial(_read, root=root)
        return msgspec.convert(value, kind, dec_hook=hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(_worded(str(error))) from None
    except UnicodeEncodeError:
        raise ValueError("expected names in Unicode") from None


@overload
def decode_record(line: bytes, kind: type[T]) -> T: ...
@overload
def decode_record(line: bytes, kind: object) -> Any: ...
def decode_record(line: bytes, kind: Any) -> Any:
    """Return the record of one line of JSON.

    Raises:
        ValueError: as for `as_record`.
    """
    # a half of a pair, which Python writes of what is no Unicode
    text = _LONE.sub(rb"\\ufffd", line) if b"\\ud" in line else line
    _known(kind)
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_read)
    except msgspec.DecodeError as error:
        raise ValueError(_worded(str(error))) from None


_LEARNING = threading.Lock()


@functools.cache
def _known(kind: Any) -> None:
    """Let msgspec look at a kind of records, in one thread: others crash at what is half known."""
    with _LEARNING:
        msgspec.json.Decoder(kind)


def _worded(message: str) -> str:
    return message[:1].lower() + message[1:].replace("`", "").replace(" - at ", " at ")


def _read(kind: type, value: Any, root: str = "") -> Any:
    """Read one of the types that msgspec does not know; it wants an instance of just that."""
    name = kind.__name__
    if name == "JsonText":
        return kind(json.dumps(value))
    if name == "Number":
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number and value not in ("nan", "inf", "-inf"):
            raise ValueError(f"Expected a number, got {value!r}")
        return kind(value)
    if name == "Time":
        time_ns = 0 if value is None else nanoseconds(value)
        if time_ns is None:
            raise ValueError(f"Expected a time in UTC, got {value!r}")
        return kind(time_ns)
    if value is None and name != "SignalNumber":
        return kind()
    if not isinstance(value, str):
        raise ValueError(f"Expected str, got {type(value).__name__}")  # noqa: TRY004 - as above
    if name == "SignalNumber":
        return kind(_signal_number(value))
    return kind(os.path.join(root, value) if name == "RunPath" and value else value)


def _signal_number(name: str) -> int:
    if name in signal.Signals.__members__:
        return int(signal.Signals[name])
    if re.fullmatch(r"signal [0-9]+", name):
        return int(name[7:])
    raise ValueError(f"Expected the name of a signal, got {name!r}")


# In what two plans or configs differ


WIDEST = 200  # characters of a value that is shown, unless somebody wants it shorter
_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")


class Change(Record, frozen=True):
    """One value that differs; a missing side is `ABSENT`, and is not written."""

    DERIVED = ("key", "kind")
    BESIDE = frozenset({"path"})

    path: tuple[Any, ...]  # keys of mappings, and places in lists
    old: Any
    new: Any

    @property
    def key(self) -> str:
        """Where it is, dotted: ``launch.args[3]``."""
        return dotted(self.path)

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """Whether the value was added, removed or changed."""
        if self.old is ABSENT:
            return "added"
        return "removed" if self.new is ABSENT else "changed"

    def __str__(self) -> str:
        return self.text()

    def text(self, widest: int = WIDEST) -> str:
        """Returns it for a person, on one line."""
        old, new = _shown(self.old), _shown(self.new)
        if self.kind == "added":
            return f"{self.key}: new, {shorten(new, widest)}"
        if self.kind == "removed":
            return f"{self.key}: was {shorten(old, widest)}, is gone"
        if shorten(old, widest) == shorten(new, widest):
            # from a little before the place where they begin to differ
            pairs = enumerate(zip(old, new, strict=False))
            first = next((index for index, (a, b) in pairs if a != b), min(len(old), len(new)))
            start = max(0, first - widest // 3)
            dots = "..." if start else ""
            old, new = f"{dots}{old[start:]}", f"{dots}{new[start:]}"
        return f"{self.key}: {shorten(old, widest)} -> {shorten(new, widest)}"


def differences(
    old: Any, new: Any, path: tuple[Any, ...] = (), *, ordered: bool = True
) -> tuple[Change, ...]:
    """Returns in what two plans differ, in the order of the keys of the old one, new ones last.

    Mappings are compared key by key; of a mapping with the same items in another order, the whole
    counts as changed if it is ``ordered``, since the order of some matters. Lists are compared
    place by place where few of them differ or where one goes on after the end of the other; else
    the whole list has changed. ``true``, ``1`` and ``1.0`` are three values. ``path``: where the
    two stand.
    """
    pairs: Iterable[tuple[Any, tuple[Any, Any]]]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys((*old, *new))
        pairs = ((key, (old.get(key, ABSENT), new.get(key, ABSENT))) for key in keys)
        # the order of the keys, or 1 in place of true
        same = not ordered or repr([*old]) == repr([*new])
    elif isinstance(old, list) and isinstance(new, list) and _differ_by_place(old, new):
        pairs, same = enumerate(itertools.zip_longest(old, new, fillvalue=ABSENT)), True
    else:
        return () if repr(old) == repr(new) else (Change(path, old, new),)
    found = [differences(*both, (*path, key), ordered=ordered) for key, both in pairs]
    changes = tuple(itertools.chain.from_iterable(found))
    return changes if changes or same else (Change(path, old, new),)


def text_lines(
    changes: Sequence[Change], most: int | None = None, widest: int = WIDEST
) -> list[str]:
    """Returns a difference as lines of text such as ``launch.nproc: 2 -> 4``.

    What exceeds ``most`` lines is counted in one more; ``widest`` is in characters.
    """
    shown = [change.text(widest) for change in changes[:most]]
    more = len(changes) - len(shown)
    return [*shown, f"... and {more} more"] if more else shown


def dotted(path: Iterable[Any]) -> str:
    """Returns a path as text: ``launch.env_per_rank[3]["A.B"]``, or ``launch.args[2]``."""
    text = ""
    for part in path:
        if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{_shown(part)}]"
    return text or "the plan"


def _differ_by_place(old: list[Any], new: list[Any]) -> bool:
    if any(isinstance(item, (Mapping, list)) for item in (*old, *new)):
        return True
    differing = sum(repr(a) != repr(b) for a, b in zip(old, new, strict=False))
    return 2 * differing <= len(old) if len(old) == len(new) else not differing


def _shown(value: Any) -> str:
    # what a terminal obeys or hides would make another text of it
    return visible(json.dumps(Plain()(value), ensure_ascii=False))
