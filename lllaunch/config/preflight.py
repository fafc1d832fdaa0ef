"""``preflight``: what must succeed before an attempt begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lllaunch.config.command import SearchPlace, check_program
from lllaunch.config.fields import known_items
from lllaunch.config.settings import Settings, read_command_line
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import Entrypoint, Preflight

PREFLIGHT_KEYS = Preflight._fields
_PREFLIGHT = "a program and its arguments ([nvidia-smi, -L]), or {command: [...], timeout: 5m}"


def read_preflight(settings: Settings, place: SearchPlace) -> tuple[Preflight | None, Tree]:
    """Read ``preflight``: what is run, or None, and its command as it was given."""
    tree, key, findings = settings["preflight"], settings.key_of("preflight"), settings.findings
    if reveal(tree) is None or tree is BROKEN:
        return None, None
    items: Mapping[str, Tree] = {"command": tree}
    if isinstance(tree, dict):
        items = known_items(tree, key, PREFLIGHT_KEYS, {}, findings)
        key = f"{key}.command"
    timeout: float | None = Preflight(()).timeout
    if reveal(items.get("timeout")) is not None:
        where = f"{settings.key_of('preflight')}.timeout"
        timeout = findings.attempt(where, items["timeout"], partial(parse_duration, zero=False))
    command = items.get("command")
    before = findings.count
    words: tuple[str, ...] = ()
    if isinstance(command, list):
        read = [word for word, _ in read_command_line(command, key, findings, "preflight")]
        words = tuple(str(reveal(word)) for word in read) if len(read) == len(command) else ()
    else:
        words = findings.attempt(key, command, _split) or ()
    if not words:
        if findings.count == before:
            findings.add(key, command, Unfit(_PREFLIGHT, code="preflight"))
        return None, None
    first, where = (command[0], f"{key}[0]") if isinstance(command, list) else (command, key)
    findings.attempt(where, first, lambda _: _look_for(words[0], place))
    return None if timeout is None else Preflight(words, timeout), command


def _split(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Unfit(_PREFLIGHT, code="preflight")
    import shlex  # noqa: PLC0415 - most runs have none

    if "\0" in value:
        raise Unfit("text without NUL characters", code="preflight")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise Unfit("a command line", "", str(error), code="preflight") from None


def _look_for(name: str, place: SearchPlace) -> None:
    """Look for the program."""
    path = Preflight((name,)).program(place.runtime_cwd)
    for search_path in place.search_paths:
        try:
            check_program(Entrypoint("program", path, name), search_path, place.runtime_cwd)
        except Unfit as unfit:
            hint, detail = unfit.hint, unfit.detail
            raise Unfit("", hint, detail, message=unfit.message, code="preflight") from None


def written_preflight(preflight: Preflight | None) -> dict[str, Any] | None:
    """What is run, as a config would say it."""
    if preflight is None:
        return None
    return {"command": [*preflight.command], "timeout": format_duration(preflight.timeout)}
