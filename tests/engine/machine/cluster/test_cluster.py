"""The engine's side of a cluster that is not there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import ClusterUnreachable, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.cluster import Cluster
from marlaas.engine.machine.workers.handle import LocalLauncher


def cluster(address: str, folder: Path) -> Cluster:
    return Cluster(address, Home(folder), {}, "tiny", lambda kwargs: kwargs)


async def test_where_nobody_listens_no_bridge_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for half a minute."""
    monkeypatch.setattr(LocalLauncher, "start", lambda *given, **named: pytest.fail("a bridge was started"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        silent = cluster(f"127.0.0.1:{nobody.getsockname()[1]}", tmp_path)
        with pytest.raises(ClusterUnreachable, match="No Ray is at") as first:
            await silent.bridge()
        with pytest.raises(ClusterUnreachable) as again:
            await silent.bridge()
    assert again.value is first.value, "it was tried again at once"


async def test_what_speaks_otherwise_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*given: Any, **named: Any) -> None:
        raise WorkerDied("Worker bridge could not start: rpc_client.h:204: Failed to connect to GCS within 10 seconds.")

    monkeypatch.setattr(LocalLauncher, "start", start)
    with socket.create_server(("127.0.0.1", 0)) as other:
        found = cluster(f"127.0.0.1:{other.getsockname()[1]}", tmp_path)
        with pytest.raises(ClusterUnreachable, match=r": what listens there does not speak as Ray does\. `marlaas"):
            await found.bridge()
