"""Writes docs/reference/schemas from the records that the files of runs and sweeps are made of.

A record says what is written; a description of a field is what its docstring says of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from lllaunch.documents import JsonText, Number, RunPath, SignalNumber, Text, Time
from lllaunch.run.directory import RunSample
from lllaunch.run.result import RunResult
from lllaunch.sweep.history import SweepResult

SCHEMAS = Path(__file__).parent / "reference" / "schemas"

_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$"
_SIGNAL = r"^(SIG[A-Z0-9]+|signal \d+)$"
# What is no more than its type: how it is written.
_TYPES: dict[Any, dict[str, Any]] = {
    Time: {"type": ["string", "null"], "pattern": _TIME},
    RunPath: {"type": ["string", "null"]},
    SignalNumber: {"type": "string", "pattern": _SIGNAL},
    Text: {"type": ["string", "null"]},
    Number: {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
    JsonText: {"description": "whatever JSON it is"},
}
# Of properties that are written and never read.
_DERIVED: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "description": "the same in words"},
    "time": {"type": ["string", "null"], "pattern": _TIME},
    "signal": {"type": ["string", "null"], "pattern": _SIGNAL},
    "seconds": {"type": "number", "minimum": 0},
    "restarts": {"type": "integer", "minimum": 0},
    "counts": {
        "type": "object",
        "description": "number of jobs, by state",
        "additionalProperties": {"type": "integer", "minimum": 1},
    },
}
# What is left out where there is none.
_OPTIONAL = frozenset({"value", "return_value"})
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
# A field with its comment: in the lines before it, or behind it.
_FIELD = re.compile(r"^((?:    # .*\n)*)    (\w+): [^#\n]*(?:# (.*))?$", re.MULTILINE)


def _descriptions(kind: type) -> dict[str, str]:
    """Return what docstrings and comments of a record and of those it extends say of its fields."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, _, attributes = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        for name, text in _ATTRIBUTE.findall(attributes):
            found[name] = " ".join(textwrap.dedent(text).split()).replace("``", "")
        # typing and enum have no source that matters
        source = inspect.getsource(each) if each.__module__.startswith("lllaunch.") else ""
        for before, name, beside in _FIELD.findall(source):
            if text := beside or " ".join(before.replace("# ", "").split()):
                found.setdefault(name, f"{text.rstrip('.')}.".replace("``", ""))
    return found


def _records(kinds: list[Any]) -> Iterator[type]:
    """Yield all records, and dataclasses, that stand in others."""
    seen: set[type] = set()
    left = list(kinds)
    while left:
        kind = left.pop()
        left += get_args(kind)
        struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if kind in seen or not (struct or dataclasses.is_dataclass(kind)):
            continue
        seen.add(kind)
        yield kind
        info = msgspec.structs.fields(kind) if struct else ()
        beside = getattr(kind, "BESIDE", frozenset())
        left += [field.type for field in info if field.name not in beside]


def _described(kind: type, part: dict[str, Any]) -> None:
    """Make of what can be read what is written."""
    part["description"] = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    properties, texts = part["properties"], _descriptions(kind)
    if issubclass(kind, msgspec.Struct):
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        for name, key in names:
            if name in getattr(kind, "BESIDE", frozenset()):
                del properties[key]
                continue
            properties[key].pop("default", None)
            if name in texts:
                properties[key]["description"] = texts[name]
        properties |= {name: dict(_DERIVED[name]) for name in getattr(kind, "DERIVED", ())}
        if not kind.__struct_config__.omit_defaults:
            part["required"] = sorted(properties.keys() - _OPTIONAL)
    part["additionalProperties"] = False


def schema_of(kind: type, name: str, title: str) -> dict[str, Any]:
    """Return the schema of a file.

    Args:
        kind: the record that it holds.
        name: of the schema.
        title: what is described.
    """
    _, parts = msgspec.json.schema_components(
        [kind], schema_hook=lambda each: dict(_TYPES[each]), ref_template="#/$defs/{name}"
    )
    known = {each.__name__: each for each in _records([kind])}
    for part in parts.keys() - known.keys():
        del parts[part]
    for each, part in parts.items():
        _described(known[each], part)
    whole = parts.pop(kind.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lllaunch:schema:{name}:1",
        **whole,
        "title": title,
        "$defs": dict(sorted(parts.items())),
    }


def schemas() -> dict[Path, str]:
    """Return the text of each schema, by file."""
    found = {
        "result": schema_of(RunResult, "result", "result.json"),
        "sweep": schema_of(SweepResult, "sweep", "sweep.json"),
        "samples": schema_of(RunSample, "samples", "a line of samples.jsonl"),
    }
    return {
        SCHEMAS / f"{name}.schema.json": f"{json.dumps(schema, indent=2, ensure_ascii=False)}\n"
        for name, schema in found.items()
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")
