"""Process hosts come and go with the nodes of the plan."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from marlaas.engine.devices.machine import EnvironmentHost
from marlaas.engine.environments.nodes.remote import RemoteNode
from marlaas.engine.errors import ClusterUnreachable
from marlaas.engine.machine import supervisor as processes
from marlaas.engine.machine.supervisor import EnvironmentHosts
from marlaas.engine.machine.workers.handle import Launcher, LocalLauncher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

HERE = EnvironmentHost("", "head", 2)
B, C = EnvironmentHost("id-b", "b", 4, 0.01), EnvironmentHost("id-c", "c", 8)


class Lab:
    """Hosts on imaginary nodes, all of them on this machine."""

    def __init__(self, folder: Path) -> None:
        self.wanted: tuple[EnvironmentHost, ...] = (HERE,)
        self.used: list[str] = []
        self.nodes: dict[str, RemoteNode] = {}
        self.said: list[str] = []
        self.reachable = True
        self.hosts = EnvironmentHosts(
            self, lambda: self.wanted, self.launcher, folder / "logs", folder, 0,  # type: ignore[arg-type]
            lambda kind, sentence, level: self.said.append(f"{level}: {sentence}"),
        )  # fmt: skip

    def use_nodes(self, nodes: Sequence[RemoteNode]) -> None:
        self.nodes = {node.name: node for node in nodes}

    async def launcher(self, node: str) -> Launcher:
        if not self.reachable:
            raise ClusterUnreachable("No cluster answers.")
        return LocalLauncher()

    async def look(self, *wanted: EnvironmentHost) -> list[str]:
        """The nodes that environments may use afterwards."""
        self.wanted = wanted
        await self.hosts.look()
        return sorted(self.nodes)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    yield made
    await made.hosts.stop()


async def test_each_other_node_of_the_plan_has_one(lab: Lab) -> None:
    assert await lab.look(HERE) == []
    assert await lab.look(HERE, B, C) == ["b", "c"]
    node = lab.nodes["b"]
    assert (node.node, node.cores, node.seconds) == ("id-b", 4, 0.01) and node.alive
    assert await lab.look(HERE, C) == ["c"]
    assert not node.alive, "nothing ran there any more"


async def test_one_in_which_something_runs_goes_on_to_its_end(lab: Lab) -> None:
    await lab.look(HERE, B)
    node = lab.nodes["b"]
    node.running = 1
    assert await lab.look(HERE) == [] and node.alive
    node.running = 0
    assert await lab.look(HERE) == [] and not node.alive


async def test_one_that_dies_is_told_of_and_comes_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.look(HERE, B)
    handle = lab.hosts._handles["id-b"]
    os.kill(handle.pid, signal.SIGKILL)
    await handle.died.wait()
    assert await lab.look(HERE, B) == [], "not at once"
    (said,) = lab.said
    assert said.startswith("warning: ") and said.endswith("Its environments are played elsewhere.")
    monkeypatch.setattr(processes, "AGAIN", 0.0)
    assert await lab.look(HERE, B) == ["b"] and lab.nodes["b"].alive


async def test_where_none_can_be_started_is_said_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "AGAIN", 0.0)
    lab.reachable = False
    assert await lab.look(HERE, B) == await lab.look(HERE, B) == []
    assert lab.said == ["warning: No environments can run on b: No cluster answers."]
    lab.reachable = True
    assert await lab.look(HERE, B) == ["b"]
