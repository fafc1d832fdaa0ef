"""What is wrong with a config file as it is written, whatever it is composed to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lllaunch.checking.experiments import EXPERIMENTS
from lllaunch.checking.files import ConfigFile
from lllaunch.checking.findings import MOST_ALIKE, WRONG, Found
from lllaunch.checking.yaml_facts import Sexagesimal
from lllaunch.config.origin import dotted
from lllaunch.config.tree import shorten
from lllaunch.secret_names import is_secret_name

# Here a number of base 60 can only be something else that was not quoted.
_NEVER_NUMBERS = (
    *("launch.tee", "launch.redirects", "launch.grace_period", "launch.local_ranks_filter"),
    *("launch.watchdog", "launch.restart"),
)


def lint(file: ConfigFile) -> Iterator[Found]:
    """Tells what is wrong with a file.

    Args:
        file: of a tree of configs.
    """
    yield from misplaced(file)
    for number, each in enumerate(file.facts.sexagesimals):
        if number == MOST_ALIKE:
            more = len(file.facts.sexagesimals) - MOST_ALIKE
            yield Found(0, file.path, 0, "", f"has {more} more numbers of base 60: quote them")
            return
        yield _told(file, each)


def _told(file: ConfigFile, each: Sexagesimal) -> Found:
    key = dotted([*file.package.split("."), *each.path] if file.package else each.path)
    never = any(_is_in(key, name) for name in _NEVER_NUMBERS)
    if any(map(is_secret_name, each.path)):
        message = "YAML reads it as a number of base 60: quote it"
    else:
        text, number = shorten(each.text, 40), shorten(repr(each.number), 40)
        message = f"YAML reads {text} as {number}: quote it"
    return Found(WRONG if never else 0, file.path, each.line, shorten(key), message)


def _is_in(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def misplaced(file: ConfigFile) -> Iterator[Found]:
    """Tells if a file is put elsewhere than its text seems to say."""
    if file.facts.late:
        message = "comes too late: '# @package' has to stand before anything else, comments too"
        yield Found(WRONG, file.path, file.facts.late, "", message)
        return
    if not file.name.startswith(f"{EXPERIMENTS}/"):
        return
    if not isinstance(file.facts.data, (dict, type(None))):
        yield Found(WRONG, file.path, 1, "", "is no mapping of keys to values")
    elif file.facts.package is None and "launch" in file.data:
        message = (
            f"is put under {file.package}, where nothing reads it; "
            "begin the file with '# @package _global_'"
        )
        yield Found(WRONG, file.path, file.line_of("launch"), "launch", message)


def superseded(found: Iterable[Found], by: Iterable[Found]) -> list[Found]:
    """Leaves out what says again, in other words, what the text of a file shows.

    Args:
        found: what was found otherwise.
        by: what `lint` found.
    """
    known: dict[tuple[str, int], list[str]] = {}
    for each in by:
        if each.code:
            known.setdefault((each.file, each.line), []).append(each.key)
    return [
        each
        for each in found
        if not any(_is_in(key, each.key) for key in known.get((each.file, each.line), ()))
    ]
