"""What a run gives its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.run.execute import worker_environment
from lllaunch.spec import Entrypoint, LaunchSpec, Nodes

if TYPE_CHECKING:
    import pytest


def test_the_interface_of_the_nodes_is_gloos_unless_somebody_has_said_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    nodes = Nodes(2, 2, 0, "c10d", "host0", 29500, interface="ib0")

    def told(**more: object) -> str | None:
        spec = LaunchSpec(
            Entrypoint("program", "/bin/true", "true"),
            nproc=1,
            log_dir="/run",
            cwd="/",
            nodes=nodes,
            **more,  # type: ignore[arg-type]
        )
        return worker_environment(spec, 0).get("GLOO_SOCKET_IFNAME")

    assert told() == "ib0"
    assert told(env={"GLOO_SOCKET_IFNAME": "eth1"}) == "eth1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth2")
    assert told() is None
