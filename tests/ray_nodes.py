"""A cluster of Ray's on this machine, in its own process: ``python -m tests.ray_nodes``.

A line on standard input is a command (``add NAME HOME``, ``remove NAME``, ``kill_head``), a line of JSON its answer. It
ends, and Ray with it, when its standard input does. The first node, the head, has the home of the environment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[1]
MEMORY = 100 * 2**20
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Fixed, so that they can be told to Ray before its agents do: see ``tell_ports``."""
ONE_CORE = "[resources]\ncores = 1\n"
"""A trainer's bits follow from its threads: on a node it has as many as next to a sampler on two cores."""
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_AUTH_MODE": "disabled",
}


class RayNodes:
    """The other side: a cluster for tests and benchmarks, with a home for each node below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | VARIABLES | {"PYTHONPATH": str(ROOT), "MARLAAS_HOME": str(self.home("head"))}
        with open(folder / "ray.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.ray_nodes"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.ids: dict[str, str] = {}
        """Ray's ids of nodes, by name."""
        self.address = str(self._answer()["address"])

    def home(self, name: str) -> Path:
        """The home of a node."""
        home = self.folder / name
        if not home.exists():
            home.mkdir()
            if name != "head":
                (home / "marlaas.toml").write_text(ONE_CORE)
        return home

    def add(self, name: str) -> str:
        """Have a node join; returns Ray's id of it."""
        return str(self._ask("add", name, str(self.home(name)))["id"])

    def remove(self, name: str) -> None:
        """End a node as a power cut does."""
        self._ask("remove", name)

    def kill_head(self) -> None:
        """End the process of the head that knows who is in the cluster, by SIGKILL."""
        self._ask("kill_head")

    def close(self) -> None:
        """End all."""
        with self._process:  # closes its input, on which it ends, and waits
            pass

    def _ask(self, *words: str) -> dict[str, Any]:
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        for line in self._process.stdout:
            if line.startswith("{"):
                return cast(dict[str, Any], json.loads(line))
        raise RuntimeError(f"Ray did not start: {(self.folder / 'ray.log').read_text()[-2000:]}")


def ports() -> dict[str, int]:
    """Ports that are free at the moment."""
    sockets = [socket.socket() for _ in PORTS]
    for each in sockets:
        each.bind(("", 0))
    numbers = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return dict(zip(PORTS, numbers, strict=True))


def tell_ports() -> None:
    """Have a node's ports known before it starts.

    Ray ends a node whose agent has not said within 15 s at which ports it listens (ray#65983). On a busy machine the
    agent's imports alone take as long.
    """
    from ray._private.node import Node
    from ray._raylet import persist_port

    start = Node.start_raylet

    def start_raylet(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in PORTS:
            persist_port(self._session_dir, self._node_id, name, getattr(self._ray_params, name))
        start(self, *args, **kwargs)

    Node.start_raylet = start_raylet


def main() -> None:
    """Serve commands."""
    from ray.cluster_utils import Cluster

    tell_ports()
    own = {"num_cpus": 0, "object_store_memory": MEMORY}
    cluster = Cluster(
        initialize_head=True, head_node_args=own | ports() | {"include_dashboard": False, "node_name": "head"}
    )
    nodes: dict[str, Any] = {}
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        answer: dict[str, Any] = {}
        if what == "add":
            name, home = words
            nodes[name] = cluster.add_node(**own, **ports(), node_name=name, env_vars={"MARLAAS_HOME": home})
            answer = {"id": nodes[name].node_id}
        elif what == "remove":
            cluster.remove_node(nodes.pop(words[0]), allow_graceful=False)
        elif what == "kill_head":
            cluster.head_node.kill_gcs_server()
        print(json.dumps(answer), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
