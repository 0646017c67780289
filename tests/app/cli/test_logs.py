"""logs: only what fits, and one JSON object a line while it is followed."""

from __future__ import annotations

import json
import time

import pytest

from ..commanding import Commander
from ..filling import Filling


@pytest.fixture
def told(filling: Filling) -> Filling:
    """A home in which something happened to two tenants."""
    filling.task("bio", "sums")
    filling.task("physics", "more")
    filling.event("The task is done.", 1)
    filling.event("The task is blocked: 100% broken", 2, "warning")
    filling.event("A worker died.", None, "error")
    return filling


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ((), [1, 2, 3]),
        (("2",), [2]),
        (("--level", "warning"), [2, 3]),
        (("--tenant", "bio"), [1]),
        (("--grep", "TASK", "--grep", "100%"), [2]),
        (("--grep", "%"), [2]),
        (("--kind", "test", "-n", "1"), [3]),
        (("--kind", "engine"), []),
        (("--since", "1h"), [1, 2, 3]),
        (("--since", "2999-01-01"), []),
    ],
)
def test_only_what_fits(told: Filling, marlaas: Commander, options: tuple[str, ...], ids: list[int]) -> None:
    assert [event["id"] for event in marlaas("logs", "--json", *options).json] == ids
    said = marlaas("logs", *options)
    assert len(said.out.splitlines()) == len(ids)
    assert ids or said.err == "No event matches yet.\n"


def test_following_as_json_lines(told: Filling, marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    more = iter(["It goes on."])

    def sleep(seconds: float) -> None:
        message = next(more, "")
        if not message:
            raise KeyboardInterrupt
        told.event(message)

    monkeypatch.setattr(time, "sleep", sleep)
    said = marlaas("logs", "-f", "--json", "-n", "1")
    assert said.code == 130
    assert [json.loads(text)["message"] for text in said.out.splitlines()] == ["A worker died.", "It goes on."]
