from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.config.plan import plan_node
from lllaunch.config.resolve import resolve
from lllaunch.review.annotated import streams_of
from lllaunch.std import Std


def launch(**given: Any) -> dict[str, Any]:
    return {"nproc": 1, "redirects": "all", "tee": "0:all", "local_ranks_filter": None, **given}


BOTH = {"stdout": "file and console", "stderr": "file and console"}
FILES = {"stdout": "file", "stderr": "file"}
LAUNCHER = {"stdout": "launcher", "stderr": "launcher"}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({}, {"0": BOTH}),
        ({"nproc": 2, "tee": "none", "redirects": "none"}, {"0-1": LAUNCHER}),
        (
            {"nproc": 3, "redirects": "out", "tee": "2:err"},
            {
                "0-1": {"stdout": "file", "stderr": "launcher"},
                "2": {"stdout": "file", "stderr": "file and console"},
            },
        ),
        # as many as there are
        ({"nproc": "gpu"}, {"0": BOTH, "1-": FILES}),
        (
            {"nproc": "auto", "tee": "all", "local_ranks_filter": [1]},
            {"0": FILES, "1": BOTH, "2-": FILES},
        ),
        (
            {"nproc": "gpu", "tee": "all", "local_ranks_filter": ["1-999999"]},
            {"0": FILES, "1-999999": BOTH, "1000000-": FILES},
        ),
    ],
)
def test_where_the_streams_of_each_rank_go(node: dict[str, Any], expected: Any) -> None:
    assert streams_of(launch(**node)) == expected


names = st.sampled_from(["none", "out", "err", "all"])
ranks = st.sampled_from(["0", "1", "2", "3", "1-2", "2-3", "0-3"])


def mask(parts: dict[str, str]) -> str:
    """Text of a mask, without the parts that would name a rank again."""
    seen: set[int] = set()
    found = []
    for key, std in parts.items():
        first, _, last = key.partition("-")
        own = {*range(int(first), int(last or first) + 1)}
        if not own & seen:
            seen |= own
            found.append(f"{key}:{std}")
    return " ".join(found)


masks = names | st.dictionaries(ranks, names, min_size=1, max_size=4).map(mask)
heard = st.none() | st.lists(ranks, max_size=2)


@given(st.integers(4, 6), masks, masks, heard)
def test_what_is_said_is_what_workers_get(
    nproc: int, redirects: str, tee: str, filtered: list[str] | None
) -> None:
    node = {"entrypoint": "env", "nproc": nproc, "redirects": redirects, "tee": tee}
    spec = resolve(
        OmegaConf.create({"launch": {**node, "local_ranks_filter": filtered}}),
        runtime_cwd="/",
        output_dir="/out",
    )
    told = streams_of(plan_node(spec)["launch"])
    by_rank = {rank: goes for key, goes in told.items() for rank in numbers(key)}
    assert [*by_rank] == [*range(nproc)]
    shown = spec.local_ranks_filter
    for rank, goes in by_rank.items():
        for name, std in (("stdout", Std.OUT), ("stderr", Std.ERR)):
            audible = bool(spec.tee[rank] & std) and (
                shown is None or any(rank in each for each in shown)
            )
            kept = bool(spec.redirects[rank] & std)
            assert goes[name] == ("file and console" if audible else "file" if kept else "launcher")
    # neighbours that have the same are told together
    assert all(
        one != other for one, other in zip([*told.values()], [*told.values()][1:], strict=False)
    )


def numbers(key: str) -> range:
    first, _, last = key.partition("-")
    return range(int(first), int(last or first) + 1)
