"""What identifies a job: by its overrides, to find it again, and by its config, to see a change.

Pure. A job's fingerprint holds what its outcome may depend on: of the plan, what the workers run,
their number and environment; of the rest of the config, everything, since only the user's code
knows what it reads. It leaves out of the plan how the run is watched, ended, shown and stored
(`NEUTRAL`), and from all texts where the sweep and the user's directory are. A key that is not
known here is in: a job that runs again is cheaper than one that wrongly does not.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lllaunch import spec

# what it runs on beside: they stood in the node once
NEUTRAL = spec.NEUTRAL | {"pin_cpus", "cluster"}
"""Keys of the launch node that do not change a job's outcome."""

CONFIG_LIMIT = 256 * 1024
"""Longest canonical config that is worth keeping to show a difference, characters of JSON."""

_OTHERS = ("launch", "hydra")
# where a job runs, a node of the config beside launch
_CLUSTER = "cluster"


def job_config(
    plan: Mapping[str, Any],
    config: Mapping[str, Any],
    places: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Returns what a job's outcome depends on as canonical JSON: the config without the rest.

    ``plan``: the decided and redacted ``launch`` node, plain data. ``config``: the job's config,
    resolved and redacted, plain data; its ``launch`` and ``hydra`` are left out. ``places``:
    directories that do not matter and what stands for them in texts, such as ``("/home/u/sweep/3",
    "<output_dir>")``. Where one is within another it goes first.

    Raises:
        TypeError: something in it is not plain data; names its key.
    """
    known = aliases(places)
    launch = {key: value for key, value in plan.items() if key not in NEUTRAL}
    rest = {key: value for key, value in config.items() if key not in _OTHERS}
    canonical: dict[str, Any] = _canonical({**rest, "launch": launch}, known, "")
    return canonical


def job_key(canonical: Any) -> str:
    """Returns the fingerprint of canonical JSON, such as `job_config` makes: a SHA-256."""
    # ASCII: the same for lone surrogates, which UTF-8 does not know
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def identity(data: Any) -> str:
    """Return the SHA-256, in hexadecimal, of plain data as canonical JSON.

    Raises:
        TypeError: something in it is not plain data; names its key.
    """
    return job_key(_canonical(data, str, ""))


# whole directories only: not /a/bc for /a/b, nor the end of a longer path, as in /x/a/b,
# https://host/a/b and ${oc.env:HOME}/a/b
_BEFORE = r"(?:(?<![\w.~/)}\]*?\\-])|(?<=://))"


def aliases(places: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return what replaces directories in a text by other names, the longest first."""
    named = {path.rstrip("/"): name for path, name in places}
    named.pop("", None)  # everything is within the root
    if not named:
        return str
    paths = "|".join(re.escape(path) for path in sorted(named, key=len, reverse=True))
    pattern = re.compile(rf"{_BEFORE}(\\*)({paths})(?![\w.-])")

    def name(found: re.Match[str]) -> str:
        # a backslash before an interpolation would make plain text of it
        return found[1] * (2 if named[found[2]].startswith("$") else 1) + named[found[2]]

    return lambda text: pattern.sub(name, text)


def _canonical(value: Any, places: Callable[[str], str], where: str) -> Any:
    """Returns plain data as JSON that differs wherever the data does."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return places(value)
    if value is None or type(value) in {bool, int}:
        return value
    if isinstance(value, Mapping):
        return {
            _key(key, where): _canonical(item, places, f"{where}.{key}" if where else str(key))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_canonical(item, places, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, os.PathLike):
        return places(os.fsdecode(value))
    raise TypeError(f"{where}: a {type(value).__qualname__} is not plain data")


def _key(key: Any, where: str) -> str:
    """Returns a key as text, other texts for the keys ``3`` and ``"3"``."""
    if isinstance(key, enum.Enum):
        return key.name
    if isinstance(key, str):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(key)
            return json.dumps(key)
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    if isinstance(key, bytes):
        return f"$bytes:{key.hex()}"
    raise TypeError(f"{where or 'the root'}: a {type(key).__qualname__} is no key of plain data")


def overrides_key(overrides: Sequence[str], neutral: bool = True, *, clusters: bool = False) -> str:
    """Returns the fingerprint of a job's overrides.

    Their order does not matter, except between overrides of the same key, or of a key and one
    below it, of which Hydra lets the last win.

    ``overrides``: as Hydra lists them for the job, such as ``["+exp=resnet", "params.lr=0.1"]``.
    ``clusters``: whether the config's node ``cluster`` says where a job runs. In an app of the
    user's own it may be another thing's, unless it is chosen from configs.
    """
    texts = [text.strip() for text in overrides]
    if not neutral:
        ours = clusters or any(_path(text) == (_CLUSTER,) for text in texts)
        texts = [
            text
            for text in texts
            if not _is_neutral(_path(text)) and not (ours and _path(text)[0] == _CLUSTER)
        ]
    return job_key(_ordered(texts))


def _is_neutral(path: tuple[str, ...]) -> bool:
    return path[0] == "launch" and len(path) > 1 and path[1] in NEUTRAL


def _path(override: str) -> tuple[str, ...]:
    """Returns the parts of an override's key: ``++a.b=1`` gives ``("a", "b")``."""
    key = override.lstrip("+~").partition("=")[0]
    return tuple(re.split(r"[./@:]", key.strip()))


def _ordered(texts: Sequence[str]) -> list[str]:
    """Returns an order that keeps each key's own overrides in theirs."""
    paths = [_path(text) for text in texts]
    known = {*paths}
    above = (path[:length] for path in known for length in range(1, len(path)))
    if len(known) == len(paths) and known.isdisjoint(above):
        return sorted(texts)  # the usual case: no two are related
    # those that are related begin alike
    return sorted(texts, key=lambda text: _path(text)[0])
