"""What tqdm, rich, Lightning and the Trainer print, as they print it, cut anywhere."""

from __future__ import annotations

import io
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, track
from tqdm import tqdm

from lllaunch.watchdog.progress import (
    LONGEST,
    MOST_SEGMENTS,
    Captured,
    OtherOutput,
    OutputParser,
    Shown,
)

RECORDED = Path(__file__).parent / "golden" / "bars"


def shown(text: str | bytes) -> list[Shown]:
    data = text.encode() if isinstance(text, str) else text
    return [each for each in OutputParser().feed(data) if isinstance(each, Shown)]


def last(text: str) -> Shown:
    return shown(f"{text}\n")[-1]


# As the installed versions print them

_COUNTS, _TIMES = "{n_fmt}/{total_fmt}", "{elapsed}<{remaining}"


def of_tqdm(total: int | None = 10, **options: object) -> str:
    file = io.StringIO()
    with tqdm(total=total, file=file, mininterval=0, **options) as bar:  # type: ignore[call-overload]
        for step in range(10):
            bar.update()
            bar.set_postfix(loss=1 / (step + 1), best=math.inf, note="warm")
    return file.getvalue()


def nested_tqdm() -> str:
    file = io.StringIO()
    for _ in tqdm(range(3), desc="epochs", file=file, mininterval=0):
        for _ in tqdm(range(4), desc="batches", file=file, mininterval=0, leave=False):
            pass
        tqdm.write("an epoch is over", file=file)
    return file.getvalue()


def of_rich(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    loss = TextColumn("loss={task.fields[loss]}")
    with Progress(SpinnerColumn(), *columns, loss, console=console, auto_refresh=False) as bars:
        epochs = bars.add_task("epochs", total=3, loss=0.5)
        batches = bars.add_task("[red]batches", total=4, loss=0.25)
        for _ in range(3):
            bars.reset(batches)
            for _ in range(4):
                bars.advance(batches)
                bars.refresh()
            bars.advance(epochs)
            bars.refresh()
    return file.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ascii": " .oO", "ncols": 100},
        {"colour": "green"},
        {"desc": "50% | of [all]: 3/4"},
        {"unit_scale": True},
        {"ncols": 0},
        {"bar_format": f"{{l_bar}}{{bar}}| {_COUNTS} [{_TIMES}, {{rate_noinv_fmt}}{{postfix}}]"},
    ],
    ids=str,
)
def test_a_bar_of_tqdm(options: dict[str, object]) -> None:
    found = shown(of_tqdm(**options))
    assert [each.step for each in found[-2:]] == [10.0, 10.0]
    assert sorted({each.step for each in found if each.step is not None}) == list(range(11))
    assert {each.total for each in found} == {10.0}
    assert {each.depth for each in found} == {0}
    assert found[-1].metrics == {"loss": 0.1, "best": math.inf}
    assert len({each.name for each in found}) == 1


def test_a_bar_of_tqdm_without_a_total() -> None:
    found = shown(of_tqdm(None, desc="read"))
    assert found[-1] == Shown("read", 10.0, metrics={"loss": 0.1, "best": math.inf})
    assert last("7 files [00:01, 3.2s/ files]").step == 7.0
    # more steps than there were to be
    assert shown(of_tqdm(5))[-1][1:3] == (10.0, None)


@pytest.mark.parametrize(
    "text",
    [
        "12.3kB [01:02:03, 4.5MB/s]",
        "model.safetensors:  20%|##  | 20.0M/100M [00:03<00:04, 14.2MB/s]",
        "     ━━━━━━━━ 12.3/45.6 MB 3.2 MB/s eta 0:00:05",
        "file ━━━━━━━━ 50% 512/1024 bytes ? 0:00:05",
    ],
)
def test_bytes_are_no_steps(text: str) -> None:
    assert shown(f"{text}\n") == []
    # but a training may tell them beside its steps
    assert last("2/10 [00:01<00:04, 2.0it/s, io=12MB/s]").step == 2.0


def test_bars_of_rich_at_a_terminal_are_told_by_their_rows() -> None:
    found = shown(of_rich(terminal=True))
    assert {(each.name, each.depth) for each in found} == {("epochs", 0), ("batches", 1)}
    assert found[-2:] == [
        Shown("epochs", 3.0, 3.0, 0, metrics={"loss": 0.5}),
        Shown("batches", 4.0, 4.0, 1, metrics={"loss": 0.25}),
    ]


def test_a_bar_of_rich_after_another_is_not_below_it() -> None:
    file = io.StringIO()
    for _ in range(3):
        for _ in track(range(2), "train", console=Console(file=file)):
            pass
    assert shown(file.getvalue()) == 3 * [Shown("train", 100.0, 100.0)]
    # without Unicode
    assert last(f"train {'-' * 40}  50% 0:00:05").step == 50.0
    assert shown(f"{'-' * 40}\n") == []


def recorded(name: str) -> list[Shown]:
    return shown((RECORDED / name).read_bytes())


def test_lightning_with_bars_of_tqdm_and_of_rich() -> None:
    found = recorded("lightning_tqdm.stdout")
    training = [each for each in found if each.name == "Epoch #" and each.depth == 0]
    assert {each.epoch for each in training} == {0, 1}
    assert training[-1][1:3] == (5.0, 5.0)
    assert training[2].metrics["train_loss"] == 0.27
    assert {each.depth for each in found if each.name.startswith("Validation")} == {1}
    found = recorded("lightning_rich.stdout")
    assert {(each.epoch, each.epochs) for each in found} == {(0, 2), (1, 2)}
    assert found[1] == Shown("Epoch #/#", 4.0, 5.0, 0, 0, 2, {"train_loss": 0.229})
    assert math.isnan(found[-1].metrics["val_loss"])


def test_the_trainer() -> None:
    bars = recorded("trainer.stderr")
    assert [each.step for each in bars if not each.depth][-1] == 12.0
    assert {each.total for each in bars if each.depth == 1} == {3.0}
    first, *_ = recorded("trainer.stdout")
    metrics = {"loss": 0.173, "grad_norm": 0.5669, "learning_rate": 4.167e-05, "epoch": 0.3}
    assert (first.step, first.metrics) == (None, metrics)
    # before transformers 5 the numbers were not quoted
    assert last("{'loss': nan, 'grad_norm': 1.5, 'epoch': 0.12}").metrics["grad_norm"] == 1.5


# Cut anywhere

STREAMS = {
    "tqdm": of_tqdm().encode(),
    "tqdm nested": nested_tqdm().encode(),
    "rich": of_rich(terminal=True).encode(),
    "rich in a file": of_rich(terminal=False).encode(),
    **{path.name: path.read_bytes() for path in RECORDED.iterdir()},
}


def assert_cut_anywhere_the_same(data: bytes, cuts: list[int]) -> None:
    pattern = re.compile(r"(?P<percent>\d+)%")
    whole, parts = OutputParser(pattern), OutputParser(pattern)
    expected = whole.feed(data)
    edges = [0, *sorted(cuts), len(data)]
    found = [
        each for begin, end in itertools.pairwise(edges) for each in parts.feed(data[begin:end])
    ]
    # nan is not equal to itself
    assert repr(found) == repr(expected)
    assert repr(parts.pending()) == repr(whole.pending())


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=10)
def test_a_stream_shows_the_same_wherever_it_is_cut(name: str, data: st.DataObject) -> None:
    stream = STREAMS[name]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert_cut_anywhere_the_same(stream, cuts)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode), st.integers(0, 300))
def test_no_output_makes_the_parser_fail(data: bytes, cut: int) -> None:
    assert_cut_anywhere_the_same(data, [min(cut, len(data))])


def test_a_line_without_an_end_takes_no_memory() -> None:
    parser = OutputParser()
    for _ in range(100):
        assert parser.feed(b"x" * 10_000) == []
    assert len(parser._pending) == LONGEST


@pytest.mark.parametrize(
    "text",
    [
        "[2024-01-01 10:00:00,123] step 3/4",
        "tests/test_a.py ....... [ 50%]",
        "downloaded 3/4 [retrying]",
        "{'model': 'resnet', 'path': '/data'}",
        "━━━━━━━━━━ title ━━━━━━━━━━",
        "----------------- 50 -----------------",
        "━━━━━━ Training started 2026/11 ━━━━━━",
        "INFO 5 files [00:12, a/b]",
        f"{'x' * 1024} 5/10 [00:01<00:01,  4.99it/s]",
    ],
)
def test_other_lines_are_no_bars(text: str) -> None:
    assert shown(f"{text}\n") == []


def test_other_output_is_told_and_what_draws_a_bar_is_none() -> None:
    parser = OutputParser()
    assert parser.feed(b"saved\n\r   \r\n\x1b[2K\x1b[1A\n\x1b[?25h\n") == [OtherOutput()]


# Bounded in work

_BAR_END = "1/2 [00:00<00:00, 1it/s]"
# Lines of which an expression that tries each length at each place would never come to the end.
HOSTILE = {
    "digits": f"mask [{'01' * 32000}] it/s",
    "short digits": f"mask [{'01' * 480}] it/s\n" * 60,
    "clocks": "1 [00:00," * 100 + " it/s]\n",
    "units": "1 a" * 300 + " [00:00, it/s]\n",
    "spaces": f"{' ' * 900}{_BAR_END}\n" * 60,
    "edges": f"{'-.' * 450} {_BAR_END}\n" * 60,
    "edges of bars": f"{'|' * 900} {_BAR_END}\n" * 60,
    "epochs": f"epoch {' ' * 900} {_BAR_END}\n" * 60,
    "rows": f"━━━━━ {'1' * 900}\n" * 60,
    "bars of rich": f"{'━━━━━ ' * 150} 1%\n" * 60,
    "quotes": "{" + "'" * 4000 + "}\n",
    "keys": "{'" + "a" * 4000 + "': 1}\n",
    "sequences": "\x1b]" * 500 + f" {_BAR_END}\n",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(60)
def test_no_line_holds_up_who_reads_it(name: str) -> None:
    # in a process of its own: nothing interrupts an expression
    code = """if True:
        import sys
        from lllaunch.watchdog.progress import OutputParser
        data = sys.stdin.buffer.read()
        parser = OutputParser()
        for _ in range(20):
            parser.feed(data + b"\\n" + data.rstrip(b"\\n"))
            parser.pending()
    """
    data = (HOSTILE[name] * (1 + 65536 // len(HOSTILE[name]))).encode()
    subprocess.run([sys.executable, "-c", code], input=data, check=True, timeout=50)


def test_of_many_bars_the_last_are_parsed() -> None:
    parser = OutputParser()
    bars = "".join(f"\r{step}/9999 [00:01<00:01, 4.99it/s]\r" for step in range(MOST_SEGMENTS))
    found = parser.feed(bars.encode())
    assert parser.skipped
    assert found[-1] == Shown("", MOST_SEGMENTS - 1.0, 9999.0)
    assert len(found) == MOST_SEGMENTS // 2
    assert parser.feed(b"1/2 [00:01<00:01, 4.99it/s]\n")
    assert not parser.skipped


# Patterns


def test_a_pattern_captures_numbers_by_the_names_of_its_groups() -> None:
    pattern = re.compile(r"step (?P<step>[\d,]+)(?: of (?P<total>\d+))? loss (?P<loss>\S+)")
    parser = OutputParser(pattern)
    assert parser.feed(b"\x1b[32mstep 1,200 loss 0.31\x1b[0m\nnothing\nstep 3 of 7 loss nan\r") == [
        Captured({"step": 1200.0, "loss": 0.31}),
        OtherOutput(),
        Captured({"step": 3.0, "total": 7.0, "loss": pytest.approx(math.nan, nan_ok=True)}),
    ]
    # numbers of all forms, and none
    assert parser.feed(b"step 1 loss 12%\nstep 2 loss -inf\nstep 3 loss seven\n") == [
        Captured({"step": 1.0, "loss": 12.0}),
        Captured({"step": 2.0, "loss": -math.inf}),
        Captured({"step": 3.0}),
    ]
    # of a long line the first 1024 characters count
    assert parser.feed(b"x" * 1010 + b"step 5 loss 0.25\n") == [
        Captured({"step": 5.0, "loss": 0.0})
    ]
    assert parser.feed(b"x" * 1024 + b"step 6 loss 0.25\n") == [OtherOutput()]
    # a line that has not ended
    assert parser.feed(b"step 4 loss 0.3") == []
    assert parser.feed(b"1\n") == [Captured({"step": 4.0, "loss": 0.31})]
    assert OutputParser(re.compile("ready")).feed(b"ready\n") == [Captured({})]
