"""A node half of whose cards others hold joins with the other half, and says why: on an imaginary machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.devices import survey
from marlaas.engine.devices.machine import Software
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.node import look_here, own_versions, trouble_with

from ....imaginary.cards import Card, ImaginaryMachine, imagine

pytestmark = pytest.mark.processes


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    monkeypatch.setattr(survey, "usable_software", lambda gpus: Software())
    return imagine(monkeypatch, tmp_path)


def test_cards_of_others_stay_untouched_on_every_node(tmp_path: Path, cards: ImaginaryMachine) -> None:
    cards.have(Card(), Card(used=12_300), Card(), Card(used=500))  # memory whose holder cannot be seen is somebody's
    facts = look_here(Home(tmp_path / "home").create())
    assert [gpu.label for gpu in facts.usable.machine.gpus] == ["gpu 0", "gpu 2"]
    assert [reason.partition(" is left alone")[0] for reason in facts.usable.reasons] == ["gpu 1", "gpu 3"]
    assert trouble_with(facts, own_versions()) == ""


def test_the_nodes_own_settings_leave_cards_out(tmp_path: Path, cards: ImaginaryMachine) -> None:
    cards.have(Card(), Card())
    home = Home(tmp_path / "home").create()
    home.config.write_text("[resources]\ngpus = [1]\n")
    facts = look_here(home)
    assert [gpu.label for gpu in facts.usable.machine.gpus] == ["gpu 1"]
    assert "`gpus` under [resources] leaves it out" in facts.usable.reasons[0]
