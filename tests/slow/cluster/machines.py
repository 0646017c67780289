"""Machines for `marlaas cluster`: homes of this one, each with ports of its own on the loopback address."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def free_range() -> int:
    """The first of a hundred ports of which none is taken, below those that the system gives away."""
    for first in range(12_000, 32_000, 100):
        taken = {each.laddr.port for each in psutil.net_connections("tcp") if each.laddr}
        if not taken & set(range(first, first + 100)):
            return first
    raise AssertionError("no ports are free")


@dataclass(frozen=True)
class Machine:
    """A home with its own Ray."""

    home: Path

    def __call__(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "marlaas.app.cli.main", *words],
            input=given,
            capture_output=True,
            text=True,
            env=os.environ | {"MARLAAS_HOME": str(self.home), "COLUMNS": "200"},
            timeout=300,
            check=False,
        )

    def nodes(self) -> dict[str, str]:
        """States of the nodes by name, as `status` tells them."""
        told: dict[str, Any] = json.loads(self("cluster", "status", "--json").stdout)
        return {node["name"]: node["state"] for node in told["nodes"]}

    @property
    def address(self) -> str:
        """Where the head of its cluster listens."""
        return str(json.loads((self.home / "node.lock").read_text())["head"])

    @property
    def token(self) -> str:
        """The cluster's token, as its home has it."""
        return (self.home / "cluster.token").read_text()

    @property
    def ray(self) -> psutil.Process:
        return psutil.Process(json.loads((self.home / "node.lock").read_text())["pid"])


def machine(root: Path, name: str, more: str = "") -> Machine:
    """A home with ports that nobody has; ``more`` is further text of its settings, the first of it for [cluster]."""
    made = Machine(root / name)
    made.home.mkdir(parents=True)
    port, ports = free_port(), free_range()
    (made.home / "marlaas.toml").write_text(f"[cluster]\nport = {port}\nports = {ports}\n{more}")
    return made
