"""An engine that answers commands as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from marlaas.app.operations import cluster, commands
from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store

Outcome = Callable[[str], None]


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """An engine that runs and gives every command one outcome, or no answer where that is "silence"."""

    def says(text: str) -> None:
        def wait(reader: object, sent: list[int]) -> dict[int, str]:
            return {} if text == "silence" else dict.fromkeys(sent, text)

        for module in (control, cluster, commands):
            monkeypatch.setattr(module, "holder", lambda path: 1)
        monkeypatch.setattr(commands, "wait_for_outcomes", wait)

    return says


def commands_of(home: Home) -> list[tuple[str, int | None, dict[str, Any]]]:
    """Commands that wait for an engine: kind, task, arguments."""
    store = Store(home.database, "tiny")
    waiting = [(command.kind, command.task, command.arguments) for command in store.tasks.new_commands()]
    store.close()
    return waiting
