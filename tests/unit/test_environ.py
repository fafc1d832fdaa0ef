"""Templates in arguments and prefixes, as torch fills them in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lllaunch.agent import LocalElasticAgent, WorkerSpec
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.supervisor.environ import WorkerContext, substitute_local_rank

PLACE = WorkerContext(
    local_rank=1,
    rank=3,
    group_rank=1,
    role_rank=3,
    role_name="trainer",
    local_world_size=2,
    world_size=4,
    group_world_size=2,
    role_world_size=4,
    master_addr="host",
    master_port=1,
    restart_count=0,
    max_restarts=0,
    run_id="r",
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--rank=${local_rank}", "--rank=3"),
        ("$local_rank", "3"),
        ("$$local_rank", "$local_rank"),
        ("$$ $", "$ $"),
        ("${rank} ${worker:rank} $local_ranks", "${rank} ${worker:rank} $local_ranks"),
        ("plain", "plain"),
    ],
)
def test_argument_macros_are_torchs(text: str, filled: str) -> None:
    assert substitute_local_rank((text, 5, None), 3) == (filled, 5, None)


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name}${rank}]:", "[trainer3]:"),
        ("$local_rank of $hostname|", "1 of |"),
        ("cost $$5 ${rank}", "cost $5 3"),
        ("$${rank} $unknown", "${rank} $unknown"),
    ],
)
def test_line_prefixes_are_templates(template: str, prefix: str) -> None:
    agent = LocalElasticAgent(
        WorkerSpec("trainer", 2, entrypoint="x"),
        DefaultLogsSpecs(),
        log_line_prefix_template=template,
    )
    assert agent._prefixes({1: PLACE}) == {1: prefix}


def test_an_agent_is_made_without_torch_or_templates() -> None:
    code = (
        "import sys; from lllaunch.agent import LocalElasticAgent, WorkerSpec;"
        "from lllaunch.multiprocessing import DefaultLogsSpecs;"
        "LocalElasticAgent(WorkerSpec('r', 2, entrypoint='x'), DefaultLogsSpecs());"
        "print([name for name in ('torch', 'numpy', 'asyncio', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
