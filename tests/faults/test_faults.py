"""The harness itself, and as many of its scenarios as fit into a minute."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scenarios import DAMAGES, KIN, scenario
from tests.faults.world import damaged

ROOT = Path(__file__).parents[2]
# Another one each time; the processes of pytest-xdist have the same.
SEED = (
    os.environ.get("FAULTS_SEED")
    or os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:8]
    or secrets.token_hex(4)
)


# Scenarios


def test_the_same_seed_and_number_give_the_same_scenario() -> None:
    first, again, other = ([scenario(seed, n) for n in range(50)] for seed in "aab")
    assert first == again != other


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for n in range(3000) for fault in scenario("a", n).faults}
    targets = ("launcher", "spawner", "worker", *KIN)
    names = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT")
    expected = {f"{name} {target}" for name in names for target in targets}
    expected |= {f"{name} twice launcher" for name in ("SIGTERM", "SIGINT")}
    expected |= {f"journal {how}" for how in DAMAGES}
    expected |= {"disk full", "directory removed", "directory renamed", "journal removed"}
    expected |= {"console closed", "console blocked", "no descriptors", "no processes"}
    assert expected | {"second launcher"} <= drawn


def test_every_damage_changes_a_journal() -> None:
    journal = b'{"time": "x", "time_ns": 1795312900402501206, "type": "ended"}\n' * 4
    for how in DAMAGES:
        assert all(damaged(journal, how, where / 10) != journal for where in range(10)), how


# Faults


def perform(*options: str, again: str) -> None:
    """Perform scenarios; show how to do so again, whatever comes of it."""
    command = [sys.executable, "-m", "tests.faults", "--jobs", "1", *options]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    print(again, done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, f"again: {again}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_by_faults(part: int) -> None:
    """More of them: ``make faults``."""
    again = f"FAULTS_SEED={SEED} python -m pytest tests/faults -k broken_by_faults"
    perform("--seed", f"{SEED}-{part}", "--seconds", "15", again=again)


@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_no_promise_is_broken_by_the_same_few_faults() -> None:
    perform("--seed", "smoke1930", "-n", "2", again="python -m tests.faults --seed smoke1930 -n 2")
