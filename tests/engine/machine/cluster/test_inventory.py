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

WORKS = UsableResources(Machine(Cpu((0,), 1, 10**9)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_the_rules_of_the_node_hold_there(home: Home) -> None:
    home.config.write_text("[resources]\ncores = 1\nmemory = 0.5\n")
    facts = look_here(home)
    assert facts.usable.machine.cpu.count == 1 and facts.usable.machine.cpu.memory <= 5e8 and facts.free_bytes <= 5e8
    assert facts.trouble == "" and facts.versions == own_versions() and abs(facts.clock - time.time()) < 60
    assert len(facts.base) >= 16 and trouble_with(facts, own_versions()) == ""


def test_settings_that_cannot_be_read_are_the_nodes_trouble(home: Home) -> None:
    home.config.write_text("[resources]\ncors = 1\n")
    facts = look_here(home)
    assert "cors" in facts.trouble and trouble_with(facts, own_versions()) == facts.trouble


def test_a_base_that_is_not_there_keeps_nobody_out(home: Home) -> None:
    home.config.write_text('base = "nobody/nothing"\n')
    facts = look_here(home)
    assert facts.base == "" and facts.trouble == ""


def test_other_versions_keep_a_node_out() -> None:
    own = own_versions()
    other = NodeFacts(replace(own, torch="9.9"), WORKS)
    assert trouble_with(other, own) == f"torch is 9.9 there and {own.torch} here. Install the same versions on both."
    assert trouble_with(NodeFacts(own), own) == "No core may be used there."
    assert trouble_with(NodeFacts(own, WORKS), own) == ""
