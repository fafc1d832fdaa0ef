"""A function as entrypoint: each worker throws darts at a quarter of a circle.

python -m lllaunch +exp=function
"""

from __future__ import annotations

import random


def estimate(darts: int, seed: str) -> dict[str, float]:
    """Estimates pi.

    Args:
        darts: how many to throw.
        seed: another one in each worker; what is known only per worker comes as text.

    Returns:
        the estimate; it stands in result.json, by rank.
    """
    rng = random.Random(seed)
    hits = sum(rng.random() ** 2 + rng.random() ** 2 < 1 for _ in range(darts))
    print(f"seed {seed}: {hits} of {darts} darts hit")
    return {"pi": 4 * hits / darts}
