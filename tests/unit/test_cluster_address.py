"""What is written of nodes: numbers, endpoints, settings of a rendezvous, lists of hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.cluster.address import (
    MOST_NODES,
    expand_hosts,
    format_endpoint,
    is_ipv6,
    parse_conf,
    parse_endpoint,
    parse_host,
    parse_nnodes,
    parse_port,
)
from lllaunch.errors import Unfit


@pytest.mark.parametrize(
    ("parse", "written", "said"),
    [
        (parse, written, said)
        for parse, examples, said in (
            (parse_nnodes, [0, 1.0, True, None, "", "1:", "1:2:3", "-1", "٣"], "number of nodes"),
            (parse_port, ["0", "65536", "", "-1", "1.0"], "from 1 to 65535"),
            (parse_host, ["", "a b", "a/b", "[a]", None, 3, "a:1"], "of a host"),
            (parse_conf, [["a=1"], 3], "a mapping"),
            (expand_hosts, ["", "a,,b", "a[", "a]", "a[[1]]", "a[]", "a[2-1]"], "a list of hosts"),
        )
        for written in examples
    ],
)
def test_what_is_none(parse: Callable[[Any], object], written: Any, said: str) -> None:
    with pytest.raises(Unfit, match=said):
        parse(written)


def test_a_range_of_nodes_goes_up() -> None:
    with pytest.raises(Unfit) as unfit:
        parse_nnodes("4:1")
    assert unfit.value.hint == "did you mean '1:4'?"
    with pytest.raises(Unfit, match="at most"):
        parse_nnodes(MOST_NODES + 1)
    with pytest.raises(Unfit, match="1 or more"):
        parse_nnodes("0:4")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        *((each, "") for each in ("host0:65536", "host0:29500/x", "user@host:1", "[::1", "[::1]1")),
        (29500, "name the host, and quote it"),
        ("fe80::1", "write [fe80::1] or [fe80::1]:PORT"),
        ("tcp://host0:29500", "leave out tcp://"),
    ],
)
def test_what_is_no_endpoint(written: Any, hint: str) -> None:
    with pytest.raises(Unfit) as unfit:
        parse_endpoint(written)
    assert unfit.value.hint == hint
    assert unfit.value.code == "endpoint"


@given(st.ip_addresses(v=6), st.integers(1, 65535) | st.none())
def test_any_ipv6_address_comes_back(address: ipaddress.IPv6Address, port: int | None) -> None:
    assert is_ipv6(str(address))
    assert parse_endpoint(format_endpoint(str(address), port)) == (str(address), port)
    assert parse_host(f"[{address}]") == parse_host(str(address)) == str(address)


@given(st.text(max_size=30))
def test_any_text_is_an_endpoint_or_none(text: str) -> None:
    try:
        host, port = parse_endpoint(text)
    except Unfit:
        return
    assert parse_endpoint(format_endpoint(host, port)) == (host, port)
    assert host
    assert not any(character.isspace() for character in host)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a", "'a' is no k=v"),
        ("a=1,,b=2", "'' is no k=v"),
        ({"a": [1]}, "a is neither text nor a number"),
        ({3: 1}, "3 is no name"),
        ("keep_alive_interval=0.5", "keep_alive_interval is a whole number, of seconds or tries"),
    ],
)
def test_what_is_no_setting_of_a_rendezvous(written: Any, said: str) -> None:
    with pytest.raises(Unfit) as unfit:
        parse_conf(written)
    assert unfit.value.detail == said
    assert "'k=v,k=v'" in unfit.value.expected


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("a[01-02,7]b[1-2],c", ["a01b1", "a01b2", "a02b1", "a02b2", "a7b1", "a7b2", "c"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[1-2].example.com,login-1", ["n1.example.com", "n2.example.com", "login-1"]),
    ],
)
def test_lists_of_hosts(written: str, names: list[str]) -> None:
    assert expand_hosts(written) == names


@pytest.mark.parametrize(
    "written",
    [f"a[1-{10**17}]", "a[1-60000],b[1-60000]", f"a[{','.join(['1-90000'] * 9)}]"],
)
def test_a_list_of_hosts_has_an_end(written: str) -> None:
    with pytest.raises(Unfit) as unfit:
        expand_hosts(written)
    assert unfit.value.detail == f"it has more than {MOST_NODES} names"


@given(st.text("ab01-,[]٣ ", max_size=25))
def test_any_text_is_a_list_of_hosts_or_none(text: str) -> None:
    try:
        found = expand_hosts(text)
    except Unfit:
        return
    assert found
    assert all(name and not {*name} & {*"[], "} for name in found)
