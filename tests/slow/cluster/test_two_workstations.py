"""\"Two workstations in five minutes\" of the docs, as it is written there: each machine is a network namespace.

Each has a name, an address and all ports of its own; `ssh` is a program that runs its command on this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home
from tests.end_to_end.conftest import consumed_once

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces are root's"),
]
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations/cluster.md").read_text(encoding="utf-8")
ADDRESSES = {"ada": "10.77.0.1", "grace": "10.77.0.2"}
TASK = """\
tenant = "lab"
name = "sums"
environment = "arithmetic"
steps = 3
train = { groups_per_step = 2, group_size = 4 }
eval = { prompts = 8, every = 0 }
"""


def written() -> list[str]:
    """The commands of the section, without their remarks."""
    section = PAGE.split("## Two workstations in five minutes")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]


@dataclass(frozen=True)
class Workstation:
    """A namespace with a name, an address and a home."""

    name: str
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / self.name

    def __call__(self, line: str) -> str:
        """Type a line there; returns what it prints."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c"]
        path = f"{self.folder}:{os.environ['PATH']}"
        done = subprocess.run(
            [*inside, f"hostname {self.name}; {line}"],
            env=os.environ | {"MARLAAS_HOME": str(self.home), "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def namespace(self) -> str:
        return f"marlaas-{self.name}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def workstations(tmp_path: Path) -> Iterator[tuple[Workstation, Workstation]]:
    """``ada`` and ``grace``, with a cable between them."""
    both = Workstation("ada", tmp_path), Workstation("grace", tmp_path)
    script(tmp_path / "marlaas", f'exec {sys.executable} -P -m marlaas.app.cli.main "$@"')
    script(tmp_path / "ssh", 'shift; exec "$@"')
    for one in both:
        one.home.mkdir()
        (one.home / "marlaas.toml").write_text("[resources]\ncores = 2\n")
    try:
        for one in both:
            ip("netns", "add", one.namespace)
        ip("link", "add", "marlaas-a", "type", "veth", "peer", "name", "marlaas-g")
        for one, end in zip(both, ("marlaas-a", "marlaas-g"), strict=True):
            ip("link", "set", end, "netns", one.namespace)
            inside = ("-n", one.namespace)
            ip(*inside, "link", "set", end, "name", "eth0")
            ip(*inside, "addr", "add", f"{ADDRESSES[one.name]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip(*inside, "link", "set", device, "up")
        yield both
        for one in reversed(both):
            one("marlaas engine stop || true; marlaas cluster leave --force || true")
    finally:
        for one in both:
            subprocess.run(["ip", "netns", "del", one.namespace], check=False, capture_output=True)


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_two_workstations(workstations: tuple[Workstation, Workstation], capsys: pytest.CaptureFixture[str]) -> None:
    ada, grace = workstations
    install, join, status, start, where, drain, leave = written()
    assert install.startswith("make install EXTRAS=cluster")
    begun = time.monotonic()
    said = ada(join)
    (line,) = (each.strip() for each in said.splitlines() if " | marlaas cluster join " in each)
    assert line.startswith(f"ssh {ADDRESSES['ada']} cat {ada.home}/cluster.token | marlaas cluster join ")
    assert "grace has joined" in grace(line)
    assert {"ada", "grace"} <= set(ada(status).split())
    ada(start)
    states = json.loads(ada(f"{status} --json"))
    assert {node["name"]: node["state"] for node in states["nodes"]} == {"ada": "ready", "grace": "ready"}
    took = time.monotonic() - begun
    (ada.home.parent / "sums.toml").write_text(TASK)
    task = json.loads(ada(f"marlaas submit {ada.home.parent}/sums.toml --json"))
    ada("marlaas wait 1")
    told = json.loads(ada(f"{where} --json"))
    assert "grace" in json.dumps(told), f"nobody is told what runs on grace: {task}"
    consumed_once(Home(ada.home), 1)
    ada(drain)
    until = time.monotonic() + 120
    while any(node["workers"] for node in json.loads(ada(f"{status} --json"))["nodes"] if node["name"] == "grace"):
        assert time.monotonic() < until, "its workers do not move"
        time.sleep(1.0)  # the engine is another process: there is nothing to await
    grace(leave)
    with capsys.disabled():
        print(f"\nfrom the first `join` to an engine over both: {took:.0f} s", end="", flush=True)
