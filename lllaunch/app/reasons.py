"""Why something could not be composed, in a few words."""

from __future__ import annotations

import os
import re

from hydra.errors import MissingConfigException, OverrideParseException

from lllaunch.config.suggest import did_you_mean
from lllaunch.linux.cgroup import shortage
from lllaunch.run.files import relative_path, working_directory

_EXPERIMENTS = "exp"
_MOST_OPTIONS = 20
_DIRECTORY = re.compile(r"^\tprovider=.*, path=file://(.+)$", re.MULTILINE)
_TO_ITSELF = re.compile(r"Recursive interpolation detected\s+full_key: (\S+)")
_MERGED = re.compile(r"Error merging override \+*([^\s=]+)=([\[{]).*\s+Cannot merge ")
_PARENT = re.compile(r"In '([^']+)': ")
_ADDED = re.compile(r"^To append to your default list use \+(.+)$", re.MULTILINE)
_GRAMMAR = "https://hydra.cc/docs/advanced/override_grammar/basic"


def reason_of(error: BaseException) -> str:
    """Says in short why a config could not be composed, with what caused that."""
    if short := shortage(error):
        return short
    parts: list[str] = []
    while error is not None and len(parts) < 4:
        text = str(error).strip()
        if text or error.__cause__ is None:
            parts.append(text or type(error).__name__)
        error = error.__cause__  # type: ignore[assignment]
    return os.linesep.join(dict.fromkeys(parts))


def message_of(error: BaseException) -> str:
    """Return the same for who gave the command: what was expected, what came, what to do."""
    reason = reason_of(error)
    if isinstance(error, OverrideParseException):
        return _misread(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(error, error.missing_cfg_file, reason)
    if added := _ADDED.search(reason):
        group = added[1].partition("=")[0]
        return f"{added[1]}: no config of group {group!r} is chosen yet; to choose one: +{added[1]}"
    if circle := _TO_ITSELF.search(reason):
        return f"{circle[1]}: expected a value, got a reference that leads back to {circle[1]}"
    if merged := _MERGED.search(reason):
        key, is_list = merged[1], merged[2] == "["
        there, new = ("mapping", "list") if is_list else ("list", "mapping")
        instead = "[...]" if is_list else "{...}"
        return (
            f"{key}: expected a {there}, as the config has one there, got a {new}; to replace it: "
            f"'~{key}' '+{key}={instead}'"
        )
    return reason


def _misread(error: OverrideParseException) -> str:
    expected = f"{error.override!r}: expected an override (KEY=VALUE)"
    if "missing EQUAL" in error.message:
        return f"{expected}, got no '='"
    # between Hydra's own first and last line
    detail = re.sub(r"Error parsing override .*\n|\nSee https:.*", "", error.message).strip()
    return f"{expected}: {detail}; see {_GRAMMAR}"


def _missing(error: MissingConfigException, name: str, reason: str) -> str:
    """Say which config is not there, who includes it, where it was looked for, and what is."""
    searched = [relative_path(path, working_directory()) for path in _DIRECTORY.findall(reason)]
    group, _, option = name.removesuffix(".yaml").rpartition("/")
    what = "experiment" if group == _EXPERIMENTS else "config"
    options = [each for each in error.options or () if each != option]
    hint = did_you_mean(option, options)
    if not hint and options:
        more = ", ..." if len(options) > _MOST_OPTIONS else ""
        hint = f"there are {', '.join(options[:_MOST_OPTIONS])}{more}"
    places = [os.path.join(path, group).rstrip("/") for path in searched]
    there = [path for path in places if os.path.isdir(path)]
    if group and not there:
        where = f" in group {group!r}"
    else:
        where = f" in {' or '.join(there)}" if there else ""
    text = f"{_including(reason, searched)}no {what} {option!r}{where}"
    return f"{text}; {hint}" if hint else text


def _including(reason: str, searched: list[str]) -> str:
    """Return the file whose defaults list names what is missing, if it is the user's."""
    parent = _PARENT.match(reason)
    if parent is None:
        return ""
    paths = [os.path.join(path, f"{parent[1]}.yaml") for path in searched]
    return next((f"{path}: " for path in paths if os.path.isfile(path)), "")
