"""A node says of itself what may be used, by its own rules, and why it cannot work."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.devices.machine import Cpu, Machine
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.node import NodeFacts, look_here, own_versions, trouble_with
from marlaas.engine.machine.cluster.node_host import Folder, NodeHost
from marlaas.engine.models.find import load_base

WORKS = UsableResources(Machine(Cpu((0,), 1, 10**9)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_the_rules_of_the_node_hold_there(home: Home) -> None:
    home.config.write_text("[resources]\ncores = 1\nmemory = 0.5\n")
    facts = look_here(home)
    assert facts.usable.machine.cpu.count == 1 and facts.usable.machine.cpu.memory <= 5e8 and facts.free_bytes <= 5e8
    assert facts.trouble == "" and facts.versions == own_versions() and abs(facts.clock - time.time()) < 60
    assert trouble_with(facts, own_versions()) == ""


def test_settings_that_cannot_be_read_are_the_nodes_trouble(home: Home) -> None:
    home.config.write_text("[resources]\ncors = 1\n")
    facts = look_here(home)
    assert "cors" in facts.trouble and trouble_with(facts, own_versions()) == facts.trouble


async def test_a_node_without_the_base_is_told_so(home: Home) -> None:
    host, base = NodeHost(home), load_base("tiny")
    own = own_versions()
    assert trouble_with(await host.describe(Folder("model", str(base.path), base.fingerprint)), own) == ""
    lacking = await host.describe(Folder("model", "/nowhere", "0123456789abcdef"))
    assert "The engine's base is not on this node: nowhere, fingerprint 0123456789ab." in trouble_with(lacking, own)
    assert trouble_with(lacking, replace(own, marlaas="9.9")).startswith(f"marlaas is {own.marlaas} there and 9.9 here")


def test_other_versions_keep_a_node_out() -> None:
    own = own_versions()
    other = NodeFacts(replace(own, torch="9.9"), WORKS)
    assert trouble_with(other, own) == f"torch is 9.9 there and {own.torch} here. Install the same versions on both."
    assert trouble_with(NodeFacts(own), own) == "No core may be used there."
    assert trouble_with(NodeFacts(own, WORKS), own) == ""
