"""Versions of installed packages, read from what installers leave beside them.

The same files that `importlib.metadata` reads: importing that takes 40 ms, and asking it which
package a module belongs to longer still. No package is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_INFO = (".dist-info", ".egg-info")
_HEAD = 64 * 1024  # bytes; the version is among the first lines


def versions_of(
    packages: Iterable[str], modules: Iterable[str] = (), path: Sequence[str] | None = None
) -> dict[str, str]:
    """Returns the versions of packages by name, those that are not installed left out.

    Args:
        packages: names of distributions.
        modules: dotted names of modules; the distributions that hold them come too. Modules of
            Python itself, and those that no installer has put there, belong to none.
        path: where to look; ``sys.path`` if None.
    """
    installed = _Installed(sys.path if path is None else path)
    wanted = {_normalized(name): name for name in packages}
    for top in sorted({module.partition(".")[0] for module in modules}):
        if top and top not in sys.stdlib_module_names:
            found = installed.owner(top)
            if found is not None:
                wanted.setdefault(_normalized(found), found)
    versions = {name: installed.version(key) for key, name in wanted.items()}
    return {name: version for name, version in versions.items() if version}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Installed:
    """The distributions on a path, the first of each name."""

    def __init__(self, path: Sequence[str]) -> None:
        self._entries: dict[str, list[str]] = {}
        self._places: dict[str, str] = {}
        for entry in dict.fromkeys(each or os.getcwd() for each in path):
            names: list[str] = []
            with contextlib.suppress(OSError):  # not there, or an archive
                names = os.listdir(entry)
            self._entries[entry] = names
            for name in sorted(names):
                if name.endswith(_INFO):
                    key = _normalized(name.rpartition(".")[0].partition("-")[0])
                    self._places.setdefault(key, os.path.join(entry, name))

    def version(self, key: str) -> str:
        """The version of a distribution, empty if it is not known."""
        place = self._places.get(key)
        return _field(place, "Version") if place else ""

    def owner(self, top: str) -> str | None:
        """The name of the distribution that a top-level module belongs to, None if to none."""
        entry = next((each for each, names in self._entries.items() if _holds(names, top)), None)
        if entry is not None:
            for place in self._beside(entry, top):
                if _claims(place, top):
                    return _field(place, "Name") or None
        # one that is installed as editable lies elsewhere, as in a user's checkout
        place = self._places.get(_normalized(top), "")
        if place and b'"editable"' in _read(os.path.join(place, "direct_url.json")):
            return _field(place, "Name") or None
        return None

    def _beside(self, entry: str, top: str) -> Iterator[str]:
        """Those in a directory, the most likely ones first."""
        places = [each for each in self._places.values() if os.path.dirname(each) == entry]
        likely = self._places.get(_normalized(top))
        yield from sorted(places, key=lambda place: place != likely)


def _holds(names: Iterable[str], top: str) -> bool:
    return any(name == top or name.startswith(f"{top}.") for name in names)


def _claims(place: str, top: str) -> bool:
    """Whether a distribution says that a module is its own."""
    listed = _read(os.path.join(place, "top_level.txt")).decode(errors="replace").split()
    if listed:
        return top in listed
    record = b"\n" + _read(os.path.join(place, "RECORD"), None)
    return any(f"\n{top}{mark}".encode() in record for mark in ("/__init__.", "/", ".py,", "."))


def _field(place: str, name: str) -> str:
    """A field of a distribution's metadata, empty if it is not there."""
    for file in ("METADATA", "PKG-INFO", ""):
        head = _read(os.path.join(place, file) if file else place).decode(errors="replace")
        for line in head.split("\n"):
            key, colon, value = line.partition(":")
            if colon and key.lower() == name.lower():
                return value.strip()
            if not line.strip():
                break  # the description follows
    return ""


def _read(path: str, limit: int | None = _HEAD) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(-1 if limit is None else limit)
    except OSError:
        return b""
