"""Trains a small ResNet on scikit-learn's digits with DistributedDataParallel over gloo.

A script like any other for torchrun. It saves a checkpoint after each epoch and goes on from the
last one, so that a restarted group of workers loses at most an epoch.

    python -m lllaunch +exp=resnet
    torchrun --standalone --nproc-per-node=2 examples/resnet/train.py --epochs 3
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from model import SmallResNet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

import lllaunch


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at its peak")
    parser.add_argument("--batch-size", type=int, default=32, help="images for each worker")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="saved after each epoch; without it, none"
    )
    return parser.parse_args(argv)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The 1437 images to learn from and the 360 to test with, 1 x 8 x 8 each, values 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    learn, test, learn_labels, test_labels = (torch.from_numpy(part) for part in parts)

    def dataset(pixels: Tensor, targets: Tensor) -> TensorDataset:
        return TensorDataset(pixels.float().reshape(-1, 1, 8, 8) / 16, targets)

    return dataset(learn, learn_labels), dataset(test, test_labels)


@dataclass
class Training:
    """What a checkpoint holds, and what it is advanced with."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    epochs_done: int = 0

    def load(self, path: str) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.epochs_done = saved["epochs_done"]

    def save(self, path: str) -> None:
        """Writes beside it and renames: whoever reads finds this checkpoint or the one before."""
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epochs_done": self.epochs_done,
        }
        with open(f"{path}.tmp", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)


def start(args: argparse.Namespace, batches: int) -> Training:
    """A training at its beginning, or where the checkpoint says."""
    torch.manual_seed(0)
    model = DistributedDataParallel(SmallResNet())
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * batches
    )
    training = Training(model, optimizer, schedule)
    if args.checkpoint and os.path.exists(args.checkpoint):
        training.load(args.checkpoint)
    return training


def learn(training: Training, loader: DataLoader[tuple[Tensor, ...]], title: str) -> float:
    """One epoch over this worker's images; returns its mean loss."""
    training.model.train()
    total = 0.0
    bar = tqdm(loader, desc=title, disable=dist.get_rank() != 0)
    for images, labels in bar:
        loss = functional.cross_entropy(training.model(images), labels)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.schedule.step()
        total += loss.item()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return total / len(loader)


@torch.no_grad()
def accuracy(model: torch.nn.Module, test: TensorDataset) -> float:
    """Share of the test images that are told right; each worker looks at its part of them."""
    model.eval()
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in test.tensors)
    right = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return int(right) / len(test)


def main(
    argv: Sequence[str] | None = None, after_epoch: Callable[[int], None] | None = None
) -> None:
    """Trains.

    Args:
        argv: command line; None for the process's own.
        after_epoch: called with the number of epochs that are done and saved.
    """
    args = arguments(argv)
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    learning, test = digits()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(learning, seed=0)
    loader = DataLoader(learning, batch_size=args.batch_size, sampler=sampler)
    training = start(args, len(loader))
    if first and training.epochs_done:
        print(f"resuming after epoch {training.epochs_done}")
    right = accuracy(training.model.module, test)
    while training.epochs_done < args.epochs:
        number = training.epochs_done + 1
        sampler.set_epoch(number)
        loss = learn(training, loader, f"epoch {number}/{args.epochs}")
        training.epochs_done = number
        right = accuracy(training.model.module, test)
        if first:
            print(f"epoch {number}: loss {loss:.3f}, test accuracy {right:.4f}")
            if args.checkpoint:
                training.save(args.checkpoint)
        # nobody begins the next epoch before this one is saved
        dist.barrier()
        if after_epoch is not None:
            after_epoch(number)
    if first:
        print(f"test accuracy {right:.4f}")
        # does nothing where lllaunch did not start the worker
        lllaunch.report({"accuracy": right, "epochs": training.epochs_done})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
