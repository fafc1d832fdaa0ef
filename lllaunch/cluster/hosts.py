"""Lists of hosts as Slurm writes them: ``gpu[01-03,7],login1``. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from lllaunch.cluster.values import MOST_NODES
from lllaunch.errors import Unfit

_EXPECTED = "a list of hosts such as gpu[01-03,7],login1"
_TOO_MANY = f"it has more than {MOST_NODES} names"
# A name without brackets, or what stands around them.
_PLAIN = re.compile(r"[^\s\[\],]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def expand_hosts(text: str) -> list[str]:
    """Returns the names in a list of hosts, in its order.

    The form is that of ``scontrol show hostnames``: numbers and ranges in brackets, as wide as the
    first number of a range is written; several brackets in a name count like an odometer.

    Raises:
        Unfit: it is none, or has more names than `MOST_NODES`.
    """
    names: list[str] = []
    for word in _words(text.strip()):
        parts = [*_parts(word)]
        if len(names) + math.prod(map(len, parts)) > MOST_NODES:
            raise _wrong(_TOO_MANY)
        names += ("".join(chosen) for chosen in itertools.product(*parts))
    return names


def _words(text: str) -> Iterator[str]:
    """Yield the words between the commas that stand outside of brackets."""
    start, inside = 0, False
    for place, character in enumerate(text):
        if character in "[]":
            if inside == (character == "["):
                raise _wrong("its brackets do not match")
            inside = not inside
        elif character == "," and not inside:
            yield text[start:place]
            start = place + 1
    if inside:
        raise _wrong("its brackets do not match")
    yield text[start:]


def _parts(word: str) -> Iterator[list[str]]:
    """Yield what may stand at each place of a name."""
    rest = word
    while rest:
        if rest[0] == "[":
            inner, _, rest = rest[1:].partition("]")
            numbers = (number for part in inner.split(",") for number in _numbers(part))
            # no more of a huge range is made than shows that it is one
            yield [*itertools.islice(numbers, MOST_NODES + 1)]
            continue
        plain = _PLAIN.match(rest)
        if plain is None:
            raise _wrong(f"{word!r} is no name")
        yield [plain[0]]
        rest = rest[plain.end() :]
    if not word:
        raise _wrong("a name is empty")


def _numbers(part: str) -> Iterator[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise _wrong(f"[{part}] is no range of numbers")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise _wrong(f"[{part}] runs backwards")
    width = len(found[1])
    return (f"{number:0{width}d}" for number in range(first, last + 1))


def _wrong(detail: str) -> Unfit:
    return Unfit(_EXPECTED, detail=detail, code="nodes")
