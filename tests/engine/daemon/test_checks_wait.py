"""Checks of plugins begin once the engine serves: at its start they would distort the speeds that it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.daemon.main import Engine
from marlaas.engine.daemon.planning import plan
from marlaas.engine.environments.protocol import EnvironmentEvent, EnvironmentInfo
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.models.find import load_base
from marlaas.engine.store.store import Store


async def test_what_loads_at_the_start_is_checked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, settings, base = Home(tmp_path / "home").create(), Settings(), load_base("tiny")
    store = Store(home.database, "tiny", base.fingerprint)
    engine = Engine(home, settings, base, plan(home, base, settings), store, lambda: None)
    monkeypatch.setattr(engine._environments, "infos", lambda: [EnvironmentInfo("mine/guess", "v1", "ready")])
    engine._on_environment(EnvironmentEvent("loaded", "mine", "v1"))
    assert not engine._conformance.busy
    await engine._tell_that_it_serves()
    assert engine._conformance.busy
    await engine._conformance.stop()
    store.close()
