"""A plan as text, each line with a comment that says where its value came from. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lllaunch.config.document import lines_of
from lllaunch.config.origins import Link, Origin, Origins
from lllaunch.config.plan import dump_yaml
from lllaunch.config.tree import leaf_items
from lllaunch.spec import LaunchSpec
from lllaunch.text import printable
from lllaunch.words import StyledText

Path = tuple[Any, ...]
Row = tuple[StyledText, ...]

_MOST = 200  # characters of a comment
_COLUMN = 40  # where comments begin, behind lines that are not longer
_LAUNCHER = ("hydra", "launcher")
_CLUSTER = "cluster"
_PACKAGED = "pkg://lllaunch.conf/cluster/slurm.yaml"
# What stands in a plan under one key and may stand in a config under another.
_SAID_BY: Mapping[Path, tuple[Path, ...]] = {
    (_CLUSTER, "nodes"): (("launch", "nnodes"),),
    (_CLUSTER, "requeue", "timeout"): ((_CLUSTER, "max_num_timeout"),),
    (_CLUSTER, "name"): ((_CLUSTER, "job_name"),),
}


def annotated(plan: Mapping[str, Any], comment: Callable[[Path], str]) -> list[Row]:
    """Return plain data as YAML, with a comment (which may be empty) behind each value."""
    text = dump_yaml(plan)
    rows: list[Row] = [(StyledText(line),) for line in text.splitlines()]
    found = lines_of(text)
    for path, _ in leaf_items(plan):
        number, said = found.nearest(path) if found.items else 0, comment(path)
        if number and said:
            (line,) = rows[number - 1]
            blanks = " " * max(0, _COLUMN - len(line.text))
            rows[number - 1] = line, StyledText(f"{blanks}  # {printable(said, _MOST)}", "faint")
    return rows


def comment_rows(title: str, facts: Iterable[tuple[str, str]]) -> list[Row]:
    """Return a block of comments: a title, and below it the facts that have a text."""
    told = [(name, text) for name, text in facts if text]
    width = max((len(name) for name, _ in told), default=0)
    rows = [f"#   {name:<{width}}  {printable(text, _MOST)}" for name, text in told]
    return [(StyledText(text, "faint"),) for text in (f"# {title}", *rows)]


def chain_of(
    origins: Origins, spec: LaunchSpec, path: Path, *, sweeps: bool = False
) -> tuple[Link, ...]:
    """Return the origin of a value of a plan, and of what that refers to.

    ``sweeps``: ``hydra.launcher`` has defaults, too.
    """
    others: tuple[Path, ...] = ()
    if path[0] == _CLUSTER:
        # another key may have said it
        others = (path, *_SAID_BY.get(path, ()))
        if path[1:2] == ("additional_parameters",) and len(path) == 3:
            name = str(path[2])
            others = (path, (_CLUSTER, name), (_CLUSTER, name.replace("-", "_")))
    for other in others:
        found = origins.chain(".".join(map(str, other)))
        if found and found[0].origin.where != _PACKAGED and not _is_default(found):
            return found
    if path[0] == "launch":
        path = (*path[:1], *spec.config_path(path[1:]))
    own = _longest(origins, path, 2)
    if sweeps and path[0] == "launch" and len(path) > 1 and _is_default(own):
        weaker = _longest(origins, (*_LAUNCHER, *path[1:]), 3)
        if weaker and weaker[0].origin.kind not in {"schema", "hydra"}:
            return weaker
    return own


def _longest(origins: Origins, path: Path, least: int) -> tuple[Link, ...]:
    """The chain of a path, or of what it is within."""
    while len(path) >= least:
        found = origins.chain(".".join(map(str, path)))
        if found:
            return found
        preset = (*path[:2], "preset")
        if path[1:2] == ("watchdog",) and path != preset and len(path) == 3:
            found = origins.chain(".".join(preset))
            if found and not _is_default(found):
                return found
        path = path[:-1]
    return ()


def origin_text(chain: Sequence[Link]) -> str:
    """Returns an origin for people: ``conf/exp/a.yaml:7 (exp=a) <- params.lr: override ...``."""
    if not chain:
        return ""
    first, *rest = chain
    texts = [_place(first.origin)]
    # what Hydra fills in came from nowhere else
    rest = [link for link in rest if link.origin.kind != "hydra"]
    texts += [f"{link.key}: {_place(link.origin)}" for link in rest]
    return " <- ".join(text for text in texts if text)


def origin_json(chain: Sequence[Link]) -> list[dict[str, Any]]:
    """Returns an origin for programs: an object for each link."""
    return [{"key": link.key, **_json(link.origin)} for link in chain]


def _json(origin: Origin) -> dict[str, Any]:
    return {
        "kind": origin.kind,
        "where": origin.where,
        "line": origin.line,
        "group": origin.group or None,
        "overridden": [_json(loser) for loser in origin.overridden],
    }


def _place(origin: Origin) -> str:
    if origin.kind == "schema":
        return "default"
    if origin.kind == "unknown":
        return "unknown"
    prefix = "override " if origin.kind == "override" else ""
    # conf/exp/a.yaml says exp=a already
    told = os.path.splitext(origin.where)[0].endswith(origin.group.replace("=", "/"))
    group = f" ({origin.group})" if origin.group and not told else ""
    # what a schema or a preset says is there to be overridden
    losers = [loser.place for loser in origin.overridden if loser.kind in {"file", "override"}]
    over = f", over {', '.join(losers)}" if losers else ""
    return f"{prefix}{origin.place}{group}{over}"


def _is_default(chain: Sequence[Link]) -> bool:
    return not chain or chain[0].origin.kind == "schema"
