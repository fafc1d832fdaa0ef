from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.config.values import format_duration, format_size, parse_duration, parse_size
from lllaunch.errors import Unfit


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        (0, 0),
        ("90", 90),
        (" 90 ", 90),
        ("1.5", 1.5),
        ("1e2", 100),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1H30M", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1d2h3m4s5ms", 93784.005),
        ("500ms", 0.5),
        ("10000d", 864_000_000),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "1x",
        "1m1h",
        "1m1m",
        "m10",
        "1 2",
        "1h-3m",
        "inf",
        "1.h",
        "9" * 99,
        "\N{ARABIC-INDIC DIGIT ONE}s",
        None,
        True,
        [],
        {},
        float("inf"),
        float("nan"),
    ],
)
def test_what_is_no_duration_says_what_one_looks_like(written: object) -> None:
    with pytest.raises(Unfit) as caught:
        parse_duration(written)
    assert "a duration (90, 90s, 10m, 1h30m, 1d)" in caught.value.expected


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("1:30:00", "write 1h30m"),
        ("0:00:05", "write 5s"),
        ("0:00:00", "write 0s"),
        ("1:30", "write 1h30m or 1m30s"),
        ("1:x", "write 1h30m"),
        ("1:2:3:4", "write 1h30m"),
    ],
)
def test_a_colon_is_refused_with_what_to_write(written: str, hint: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_duration(written)
    assert caught.value.hint == hint


@pytest.mark.parametrize("written", [-1, "-1", -0.001])
def test_a_duration_is_not_negative(written: object) -> None:
    with pytest.raises(Unfit, match="a duration of 0 or more"):
        parse_duration(written)


def test_zero_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(Unfit, match="a duration of more than 0"):
        parse_duration("0s", zero=False)
    with pytest.raises(Unfit, match="a duration of more than 0"):
        parse_duration(-1, zero=False)


@pytest.mark.parametrize("written", ["10001d", 1e30, 10**400])
def test_a_duration_has_a_limit(written: object) -> None:
    with pytest.raises(Unfit, match="a duration of 10000 days at most"):
        parse_duration(written)


@given(st.integers(0, 864_000_000_000).map(lambda ms: ms / 1000))
def test_a_written_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(1e-9, 864_000_000))
def test_any_float_of_seconds_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("written", [1e-10, "1e-300", 5e-324])
def test_a_duration_too_short_to_be_written_is_refused(written: object) -> None:
    with pytest.raises(Unfit, match="a duration of a nanosecond or more"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (30, "30s"), (90, "1m30s"), (5400, "1h30m"), (86400, "1d"), (60.5, "1m0.5s")],
)
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (1024, 1024),
        ("1024", 1024),
        ("7B", 7),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("16GB", 16 * 10**9),
        ("1kB", 1000),
        ("1.5KiB", 1536),
        ("2PiB", 2**51),
    ],
)
def test_sizes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "GB", "1 2", "1XB", "x", "1e3", None, True, 1.5, []])
def test_what_is_no_size_says_what_one_looks_like(written: object) -> None:
    with pytest.raises(Unfit) as caught:
        parse_size(written)
    assert caught.value.expected == "a size (1048576, 512MiB, 16GB)"


@pytest.mark.parametrize("written", ["16G", "16g", "16Gi"])
def test_a_unit_without_its_b_could_be_two(written: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_size(written)
    assert caught.value.hint == "write 16GB (powers of 1000) or 16GiB"


def test_sizes_are_whole_and_have_bounds() -> None:
    with pytest.raises(Unfit, match="whole number of bytes"):
        parse_size("0.1B")
    with pytest.raises(Unfit, match="a size of 0 or more"):
        parse_size(-1)
    with pytest.raises(Unfit, match="a size of less than 8 EiB"):
        parse_size("9999999PB")


@given(st.integers(0, 2**63 - 1))
def test_a_written_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 999), st.sampled_from(["kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_whole_units_are_written_without_loss(count: int, unit: str) -> None:
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == size
    assert len(format_size(size)) <= len(f"{count}{unit}") + 1


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (7, "7B"), (1000, "1kB"), (2**29, "512MiB"), (16 * 10**9, "16GB")]
)
def test_sizes_are_written_as_people_do(size: int, text: str) -> None:
    assert format_size(size) == text
