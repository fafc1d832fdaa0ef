"""A Hydra app of one's own: its function runs in `launch.nproc` workers, one for each fold.

python examples/own_app/train.py
python examples/own_app/train.py launch.nproc=2 lr=0.1
python examples/own_app/train.py --multirun lr=0.1,0.5
"""

import logging
import os

import numpy as np
from omegaconf import DictConfig
from sklearn.datasets import load_digits

import lllaunch

log = logging.getLogger(__name__)


@lllaunch.main(config_path="conf", config_name="config", version_base="1.3")
def train(cfg: DictConfig) -> float:
    """Cross-validates softmax regression on the digits; each worker leaves another fold out."""
    fold, folds = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    images, labels = load_digits(return_X_y=True)
    images = np.hstack([images / 16, np.ones((len(images), 1))])
    held_out = np.arange(len(labels)) % folds == fold
    x, wanted = images[~held_out], np.eye(10)[labels[~held_out]]
    weights = np.zeros((x.shape[1], 10))
    for _ in range(cfg.steps):
        scores = np.exp(x @ weights)
        told = scores / scores.sum(axis=1, keepdims=True)
        weights -= cfg.lr * x.T @ (told - wanted) / len(x)
    right = float(((images[held_out] @ weights).argmax(axis=1) == labels[held_out]).mean())
    # Hydra's job logging is set up in every worker: attempt_0/RANK/train.log
    log.info("fold %d of %d: %.3f told right", fold, folds, right)
    return right


if __name__ == "__main__":
    train()
    accuracies = train.return_values()
    print(f"mean accuracy {sum(accuracies.values()) / len(accuracies):.3f}")
