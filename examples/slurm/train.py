"""A training that survives preemption: it saves on SIGTERM and every few steps, and goes on there.

It fits a weight to noisy measurements. With several workers each has measurements of its own, and
torch averages the gradients; with one worker torch is not needed.

    cd examples/slurm
    python -m lllaunch +exp=train                   # here
    python -m lllaunch +exp=train cluster=mysite    # on Slurm

The script knows neither lllaunch nor Slurm, but for the line that reports its result:

    torchrun --standalone --nproc-per-node=2 train.py --steps 50

docs/howto/survive-preemption.md goes through it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time

import lllaunch

RANK, WORLD_SIZE = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
WANTED = 3.0

if WORLD_SIZE > 1:
    import torch
    import torch.distributed as dist


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=0.1, help="that each step takes")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--checkpoint", metavar="FILE", help="without it nothing is saved")
    return parser.parse_args()


def load(path: str | None) -> tuple[int, float]:
    """Returns how many steps are done, and the weight: what rank 0 finds, in all ranks."""
    step, weight = 0, 0.0
    if RANK == 0 and path is not None and os.path.exists(path):
        with open(path) as file:
            saved = json.load(file)
        step, weight = saved["step"], saved["weight"]
    if WORLD_SIZE > 1:
        tensor = torch.tensor([step, weight], dtype=torch.float64)
        dist.broadcast(tensor, 0)
        step, weight = int(tensor[0]), float(tensor[1])
    return step, weight


def save(path: str | None, step: int, weight: float) -> None:
    """Writes beside it and renames: whoever reads finds this checkpoint or the one before."""
    if path is None or RANK != 0:
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(f"{path}.tmp", "w") as file:
        json.dump({"step": step, "weight": weight}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def mean(*numbers: float) -> list[float]:
    """Returns the mean of each number over all ranks; they must all come here."""
    if WORLD_SIZE == 1:
        return list(numbers)
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor)
    return [float(number) for number in tensor / WORLD_SIZE]


class Notice:
    """Whether SIGTERM has come. It is only noted: a step that is half done is no state to save."""

    def __init__(self) -> None:
        self.come = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self.come = True


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


def train(args: argparse.Namespace, notice: Notice) -> float:
    """Trains to the end and returns the weight; or leaves, with what is done saved."""
    step, weight = load(args.checkpoint)
    if step:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        say(f"goes on after step {step}, restart {restarts}")
    while step < args.steps:
        time.sleep(args.seconds)
        measured = random.Random(f"{RANK} {step}").gauss(WANTED, 0.1)
        # The signal comes to one rank sooner than to another. What each knows of it goes round with
        # the gradients, so that all leave after the same step.
        gradient, stopping = mean(2 * (weight - measured), float(notice.come))
        weight -= args.lr * gradient
        step += 1
        regular = step % args.save_every == 0 or step == args.steps
        if regular or stopping:
            save(args.checkpoint, step, weight)
            say(f"step {step}: weight {weight:.3f}")
        if stopping and step < args.steps:
            say(f"leaves after step {step}")
            sys.exit(128 + signal.SIGTERM)
    return weight


def main() -> None:
    args, notice = arguments(), Notice()
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    weight = train(args, notice)
    if RANK == 0:
        lllaunch.report(abs(weight - WANTED))
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
