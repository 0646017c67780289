"""`marlaas engine drain` on a real engine: it ends between two steps, and the next one loses nothing."""

from __future__ import annotations

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.store.queries.reader import Reader

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_a_drained_engine_leaves_nothing_half_done(lab: Lab) -> None:
    task = lab.submit("long", steps=2000, train={"max_staleness": 1})
    lab.until(task, 2)
    lab.marlaas("engine", "drain")
    assert holder(lab.home.lock) is None and not control.drain(lab.home, print)
    stood = lab.row(task)
    assert stood.state == "running" and stood.step >= 2
    with Reader(lab.home.database) as reader:
        engine, (waiting,) = reader.engine(), reader.all("SELECT count(*) FROM commands WHERE done IS NULL")
    assert engine is not None and engine.state == "stopped" and waiting[0] == 0
    control.ensure_running(lab.home)
    assert lab.until(task, stood.step + 2).step >= stood.step + 2
    lab.marlaas("cancel", str(task))
