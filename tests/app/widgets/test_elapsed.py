"""What is under way is told with its seconds; what is over is not."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
from textual.app import App, ComposeResult

from marlaas.app.widgets import elapsed
from marlaas.app.widgets.elapsed import Elapsed


class Telling(App[None]):
    """A line."""

    def compose(self) -> ComposeResult:
        yield Elapsed(id="told")


async def test_seconds_are_counted_while_something_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0, 3)
    monkeypatch.setattr(elapsed, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    app = Telling()
    async with app.run_test(size=(40, 3)) as pilot:
        line = app.query_one(Elapsed)

        def shown() -> str:
            return str(line.render()).rstrip()

        line.show("Starting it …", under_way=True)
        assert shown() == "Starting it …", "at once"
        for _ in range(600):  # of 50 ms: the line counts each second
            await pilot.pause(0.05)
            if shown() != "Starting it …":
                break
        assert shown() == "Starting it … 3 s"
        line.show("It is there.")
        assert shown() == "It is there."
