"""Measures lllaunch against torchrun, in the same run and on the same scripts.

    python benchmarks/launch.py              everything; some minutes
    python benchmarks/launch.py --quick      up to 8 workers, 3 rounds

Three things are measured: the time from a launcher's start to its exit, the time from a worker's
failure to the launcher's exit, and the launcher's memory. The two launchers take turns, after a
round that is not counted. The table shows medians, in brackets the least and the greatest value,
and the ratio of the medians. The machine should do nothing else meanwhile.

Both are run as modules of this interpreter. lllaunch reads a YAML from ./conf/exp, as its users
have it; where the workers import torch, that YAML says `preload: [torch]`. torchrun runs with
--standalone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workplace import LAUNCHERS, Workplace, machine

OURS, THEIRS = LAUNCHERS
PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"


@dataclass(frozen=True)
class Figure:
    """A line of the table.

    Attributes:
        name: what is measured.
        unit: of its values.
    """

    name: str
    unit: str = "s"


@dataclass(frozen=True)
class Case:
    """One or more figures that one run of a launcher gives.

    Attributes:
        figures: what they are.
        measure: runs a launcher once; returns a value for each figure.
    """

    figures: tuple[Figure, ...]
    measure: Callable[[str], Sequence[float]]


Values = dict[str, dict[str, list[float]]]


def times(place: Workplace, script: str, nproc: int) -> Case:
    workers = "1 worker" if nproc == 1 else f"{nproc} workers"
    figure = Figure(f"start to exit, {workers}, {script} imported")
    return Case((figure,), lambda launcher: [place.seconds(launcher, f"with_{script}", nproc)])


def all_cases(place: Workplace, counts: Sequence[int]) -> list[Case]:
    failure = Figure("a worker's failure to the launcher's exit")
    peak = Figure("peak memory of the launcher", "MiB")
    share = Figure("PSS of all but the workers", "MiB")
    torch_peak = Figure("peak memory of the launcher, torch imported", "MiB")
    torch_share = Figure("PSS of all but the workers, torch imported", "MiB")
    return [
        *(times(place, "nothing", nproc) for nproc in counts),
        *(times(place, "torch", nproc) for nproc in counts),
        Case((failure,), lambda launcher: [place.seconds_after_failure(launcher)]),
        Case((peak, share), lambda launcher: place.memory(launcher, "hold")),
        Case((torch_peak, torch_share), lambda launcher: place.memory(launcher, "hold_with_torch")),
    ]


def measure(case: Case, rounds: int, budget: float) -> Values:
    """Measures a case.

    Args:
        case: what.
        rounds: how often, at most; each round runs both launchers, in alternating order.
        budget: seconds after which no further round begins. One is always counted; when the first
            has used up the budget, it is that one, and there is none before it.
    """
    values: Values = {figure.name: {name: [] for name in LAUNCHERS} for figure in case.figures}
    began = time.monotonic()
    for number in range(rounds + 1):
        late = time.monotonic() - began > budget
        if number and late:
            break
        if number == 1:  # what came before was the warm-up
            for found in values.values():
                found.update({name: [] for name in LAUNCHERS})
        for launcher in LAUNCHERS if number % 2 else LAUNCHERS[::-1]:
            for figure, value in zip(case.figures, case.measure(launcher), strict=True):
                values[figure.name][launcher].append(value)
    return values


def spread(values: Sequence[float], unit: str) -> str:
    digits = 0 if unit == "MiB" else 3 if max(values) < 1 else 2
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def row(figure: Figure, values: dict[str, list[float]]) -> list[str]:
    ours, theirs = (values[name] for name in LAUNCHERS)
    ratio = statistics.median(theirs) / statistics.median(ours)
    shown = [spread(each, figure.unit) for each in (ours, theirs)]
    return [figure.name, *shown, f"{ratio:.1f}x", str(len(ours))]


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = ["-" * width for width in widths]
    padded = (
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in (lines[0], rule, *lines[1:])
    )
    return "\n".join(f"| {line} |" for line in padded)


def floors(place: Workplace) -> dict[str, float]:
    """How long things take that no launcher of this kind can do without, seconds."""
    empty_app = (
        "import hydra, sys; sys.argv = ['app', 'hydra.run.dir=runs/app'];"
        "hydra.main(version_base=None, config_path=None)(lambda cfg: None)()"
    )
    codes = {
        "an empty Python": "pass",
        "import torch": "import torch",
        "an empty Hydra app": empty_app,
    }
    return {
        name: statistics.median(place.python(code) for _ in range(5))
        for name, code in codes.items()
    }


def report(
    lines: Sequence[Sequence[str]], facts: Mapping[str, str], base: Mapping[str, float]
) -> str:
    """The table, and below it what it depends on."""
    on = ", ".join(f"{name} {value}" for name, value in facts.items())
    scale = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in base.items())
    return f"{table(lines)}\n\nOn: {on}.\nFor scale: {scale}."


def update(page: Path, text: str) -> None:
    """Puts a text between the marks in a page."""
    head, mark, rest = page.read_text().partition("<!-- benchmark -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    page.write_text(f"{head}{mark}{text}\n{end}{tail}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, help="rounds of each case (default: 7, quick: 3)")
    parser.add_argument("--quick", action="store_true", help="3 rounds, up to 8 workers")
    parser.add_argument(
        "--budget",
        type=float,
        default=120.0,
        help="seconds after which no further round of a case begins (default: 120)",
    )
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    parser.add_argument("--json", metavar="FILE", help="all values, for programs")
    parser.add_argument(
        "--page", action="store_true", help="put the result into docs/benchmarks.md, too"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    rounds = args.runs or (3 if args.quick else 7)
    counts = (1, 8) if args.quick else (1, 8, 64)
    facts = machine()
    lines = [["", OURS, THEIRS, "ratio", "rounds"]]
    values: Values = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Workplace(Path(directory))
        base = floors(place)
        for case in all_cases(place, counts):
            if not any(args.only in figure.name for figure in case.figures):
                continue
            found = measure(case, rounds, args.budget)
            values |= found
            lines += [row(figure, found[figure.name]) for figure in case.figures]
            print(f"measured: {case.figures[0].name}", file=sys.stderr)
    shown = report(lines, facts, base)
    print(shown)
    if args.page:
        update(PAGE, shown)
    if args.json:
        data = {"machine": facts, "for_scale": base, "values": values}
        Path(args.json).write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
