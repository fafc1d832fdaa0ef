"""Hydra's own suites for launchers, unchanged.

With one worker a job they run under Hydra's sweeper, with two under ours.
"""

from __future__ import annotations

import pytest
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)


@pytest.mark.parametrize("launcher_name", ["lllaunch"])
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([f"hydra.launcher.nproc={nproc}", *more], id=f"{name}{nproc}")
        for nproc, name, more in (
            # said, since another test of this process may have made ours the default
            (1, "basic", ["hydra/sweeper=basic"]),
            (2, "lllaunch", ["hydra/sweeper=lllaunch"]),
        )
    ],
)
class TestLauncher(LauncherTestSuite):  # type: ignore[misc]
    """A sweep's directories, configs and return values are those of Hydra's own launchers."""


@pytest.mark.parametrize("launcher_name", ["lllaunch"])
@pytest.mark.parametrize(
    "overrides",
    [["hydra.launcher.nproc=2", "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2"]],
)
class TestBatches(BatchedSweeperTestSuite):  # type: ignore[misc]
    """A sweeper may ask for several batches, one after another."""


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/launcher=lllaunch", f"hydra.launcher.nproc={nproc}"]) for nproc in (1, 2)],
)
class TestIntegration(IntegrationTestSuite):  # type: ignore[misc]
    """A user's own app runs unchanged."""
