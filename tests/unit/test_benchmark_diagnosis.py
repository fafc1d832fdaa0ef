import importlib
import re
from pathlib import Path

import pytest
from support.diagnosis import CASES, SCRIPTS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_failure_is_compared_by_cause_rank_and_place_of_both_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    theirs = importlib.import_module("benchmarks.diagnosis").SAID_BY_TORCHRUN
    assert [case.number for case in CASES] == list(theirs) == list(range(1, 23))
    for case in CASES:
        assert (SCRIPTS / case.script).exists()
        assert case.cause
        said = theirs[case.number]
        if said is None:
            continue
        for ours, fact in zip((case.cause, case.rank, case.place), said, strict=True):
            re.compile(ours)
            re.compile(fact)
            # what does not exist is asked of neither
            assert bool(ours) == bool(fact)
