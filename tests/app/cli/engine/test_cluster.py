"""Whoever starts an engine, or asks for its state, hears that its cluster does not answer."""

from __future__ import annotations

import time

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from tests.app.filling import Filling

from ...commanding import Commander

SAID = "Nothing answers at 10.0.0.5:6379 within 3 s. This machine goes on alone."


def test_a_cluster_that_does_not_answer_is_told(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling = Filling(home.database, time.time())
    filling.insert("events", level="warning", kind="node", message="of the engine before", created=0.0)
    home.config.write_text('[cluster]\naddress = "10.0.0.5:6379"\n')

    def starts(*given: object, **named: object) -> None:
        filling.engine()
        filling.insert("events", level="info", kind="node", message="no warning", created=time.time())
        for message in (SAID, "another of the monitor's"):
            filling.insert("events", level="warning", kind="node", message=message, created=time.time())

    monkeypatch.setattr(control, "ensure_running", starts)
    started = marlaas("engine", "start")
    assert started.code == 0 and SAID in started.err and "before" not in started.err and "another" not in started.err
    silent = "cluster 10.0.0.5:6379 does not answer: this machine works alone"
    assert silent in marlaas("engine", "status").out
    home.config.write_text("")
    assert "does not answer" not in marlaas("engine", "status").out
