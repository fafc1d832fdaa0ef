from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.spec import WORKER_NAMES, names_in, substitute

FACTS = {name: f"<{name}>" for name in WORKER_NAMES}


@pytest.mark.parametrize("name", WORKER_NAMES)
def test_every_name_is_replaced(name: str) -> None:
    assert substitute(f"a ${{worker:{name}}} ${{{name}}} b", FACTS) == f"a <{name}> ${{{name}}} b"


def test_lists_tuples_and_values_of_dicts_are_searched_and_keep_their_types() -> None:
    value = {"${worker:rank}": ["${worker:rank}", ("${worker:rank}", 3)], "n": None}
    assert substitute(value, {"rank": "7"}) == {"${worker:rank}": ["7", ("7", 3)], "n": None}


@pytest.mark.parametrize("text", ["${nope}", "${worker:nope}", "$rank", "{rank}", "${ rank }"])
def test_what_is_no_name_stays(text: str) -> None:
    assert substitute(text, FACTS) == text


def test_a_shells_own_variables_and_names_without_a_fact_stay() -> None:
    text = "echo ${hostname} ${worker:hostname} ${worker:rank}"
    left = "echo ${hostname} node7 ${worker:rank}"
    assert substitute(text, {"hostname": "node7"}) == left


def test_a_fact_that_looks_like_a_name_is_not_replaced_again() -> None:
    facts = {"rank": "${worker:hostname}", "hostname": "h"}
    assert substitute("${worker:rank}", facts) == "${worker:hostname}"


def test_names_are_found_anywhere_misspelt_ones_too() -> None:
    value = {"a": ["${worker:rank}${worker:rnak}"], "b": ("${hostname}", 1, "${other}")}
    assert names_in(value) == {"rank", "rnak"}


@given(st.lists(st.sampled_from(WORKER_NAMES) | st.text(alphabet="$x{}:", max_size=3)))
def test_all_that_is_asked_for_is_replaced(parts: list[str]) -> None:
    text = "|".join(f"${{worker:{part}}}" if part in FACTS else part for part in parts)
    assert not names_in(substitute(text, FACTS)) & set(WORKER_NAMES)
