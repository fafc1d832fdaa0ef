"""What a sweep searches: cross-validation of softmax regression, one worker for each fold.

python -m lllaunch +exp=sweep
python -m lllaunch -m +exp=sweep params.lr=0.1,1,10
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits

import lllaunch


def validate(lr: float, decay: float, steps: int) -> float:
    """Trains on all folds but this worker's own, and validates on that.

    Args:
        lr: length of a step of gradient descent.
        decay: how much of the weights each step takes away, times ``lr``.
        steps: how many.

    Returns:
        the share of images told right, over all folds. The workers work it out together, so it is
        the same in all of them; a sweep's objective is what rank 0 returns.

    Raises:
        ValueError: there is one worker, and nothing is left to train on.
        FloatingPointError: the weights grow without bound, since ``lr`` times ``decay`` is over 2.
    """
    dist.init_process_group("gloo")
    fold, folds = dist.get_rank(), dist.get_world_size()
    if folds < 2:
        raise ValueError("cross-validation needs two workers at least")
    images, labels = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    images = torch.hstack([images.float() / 16, torch.ones(len(images), 1)])
    held_out = torch.arange(len(labels)) % folds == fold
    x, wanted = images[~held_out], torch.eye(10)[labels[~held_out]]
    weights = torch.zeros(x.shape[1], 10)
    for step in range(steps):
        lllaunch.progress(step, steps)
        error = torch.softmax(x @ weights, dim=1) - wanted
        weights -= lr * (x.T @ error / len(x) + decay * weights)
    if not weights.isfinite().all():
        raise FloatingPointError(f"the weights are not finite after {steps} steps")
    right = ((images[held_out] @ weights).argmax(dim=1) == labels[held_out]).sum()
    print(f"fold {fold} of {folds}: {right} of {held_out.sum()} told right")
    dist.all_reduce(right)
    dist.destroy_process_group()
    return right.item() / len(labels)
