"""Whether an engine measures its processor before it plans."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.base.model import load_base
from marlaas.engine.daemon import planning
from marlaas.engine.devices.machine import Inventory, Machine, Rates
from marlaas.engine.devices.survey import Survey
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from tests.engine.fleet.placement.imaginary import NOTHING, SERVER, machine

RATED = replace(SERVER, rates=Rates(100e9, 10e9, bfloat16=500e9))


@pytest.mark.parametrize(
    ("found", "small", "measured"),
    [
        (Machine(SERVER), False, True),
        (Machine(SERVER), True, False),
        (Machine(RATED), False, False),
        (machine("A100"), False, False),
    ],
)
def test_a_processor_is_measured_once_where_a_large_base_is_on_it(
    found: Machine, small: bool, measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def survey(*_: Any, missing: bool = False) -> Survey:
        asked.append(missing)
        seen = replace(found, cpu=RATED) if missing else found
        return Survey(Inventory(seen), UsableResources(seen), NOTHING, "lab")

    monkeypatch.setattr(planning, "survey_machine", survey)
    monkeypatch.setattr(planning, "is_small", lambda parameters: small)
    planning.plan(Home(tmp_path), load_base("tiny"), Settings())
    assert asked == ([False, True] if measured else [False])
