"""Counts words: ``python -m examples.wordcount --files FILE ... [--top N]``."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

import lllaunch

from .counting import count, share


def main() -> None:
    parser = argparse.ArgumentParser(prog="examples.wordcount")
    parser.add_argument("--files", nargs="+", type=Path, required=True)
    parser.add_argument("--top", type=int, default=3)
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    counts: Counter[str] = Counter()
    for file in share(args.files, rank, world_size):
        counts += count(file.read_text())
    print(f"worker {rank} of {world_size}: {counts.total()} words")
    lllaunch.report({"words": counts.total(), "top": counts.most_common(args.top)})


main()
