"""Engines of tests look at their queues all the time."""

from __future__ import annotations

import pytest

from marlaas.engine.machine.yielding import loop
from marlaas.engine.queue.scheduler import scheduler


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "POLL", 0.001)
    monkeypatch.setattr(scheduler, "REVIEW", 0.002)
    monkeypatch.setattr(loop, "POLL", 0.001)
