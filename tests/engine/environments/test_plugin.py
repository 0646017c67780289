"""What is told of a plugin through its edits."""

from __future__ import annotations

import pytest

from marlaas.engine.environments import plugin
from marlaas.engine.environments.plugin import said
from marlaas.engine.environments.protocol import EventKind
from marlaas.engine.trajectories import Failure

from .conftest import ECHO, World


def test_a_failure_stands_within_sentences() -> None:
    assert said(Failure("it is no number, inf.", "x.py", 3)) == "x.py:3: it is no number, inf"
    assert said(Failure("it is a link", "x.py")) == "x.py: it is a link" and said(Failure("it died")) == "it died"


@pytest.mark.processes
async def test_an_edit_that_takes_long_to_load_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    (before,) = world.service.infos()
    assert before.state == "ready" and "loading" not in {event.kind for event in world.told}
    monkeypatch.setattr(plugin, "SLOW", 0.0)
    edits: tuple[tuple[str, EventKind, str], ...] = (
        ("import nothing_at_all\n", "rejected", "stale"),
        ("import json\n", "loaded", "ready"),
    )
    for text, kind, after in edits:
        world.save("echo.py", text + ECHO)
        told = await world.until("loading", "echo")
        (info,) = world.service.infos()
        assert (info.state, info.version, info.failure) == ("loading", before.version, None) and told.version
        await world.until(kind, "echo")
        assert [info.state for info in world.service.infos()] == [after]
