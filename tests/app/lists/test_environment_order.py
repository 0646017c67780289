"""What somebody has to mend comes first, under a short name."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.lists.environment_order import ORDER, broken_first, short_names
from marlaas.app.words.environments.facts import STATES
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.store.queries.machine import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow

FINE = EnvironmentRow("a/fine", "v", "ready", (), "", "", "", 0, "/p/a.py", 0.0)
NOTHING = EnvironmentUse()


def test_every_state_has_its_place() -> None:
    assert set(ORDER) == set(STATES)


def test_the_worst_is_the_first() -> None:
    rows = [
        (FINE, NOTHING),
        (replace(FINE, name="b/fails"), EnvironmentUse({"ok": 1, "error": 9})),
        (replace(FINE, name="c/unfit", findings=(Finding("length", "error", "x"),)), NOTHING),
        (replace(FINE, name="d/warned", findings=(Finding("length", "warning", "x"),)), NOTHING),
        *(
            (replace(FINE, name=f"z/{state}", state=state), NOTHING)
            for state in ("waiting", "broken", "stale", "what?")
        ),
    ]
    names = [row.name for row, _ in broken_first(rows)]
    assert names == ["z/broken", "z/what?", "z/stale", "z/waiting", "b/fails", "c/unfit", "a/fine", "d/warned"]
    assert broken_first([]) == []


def test_alike_ones_go_by_the_name_that_is_shown() -> None:
    rows = [(replace(FINE, name=name), NOTHING) for name in ("solved/hopeless", "relay/relay", "games/chess")]
    assert [row.name for row, _ in broken_first(rows)] == ["games/chess", "solved/hopeless", "relay/relay"]


def test_names_are_as_short_as_they_can_be() -> None:
    names = ["first_letter/first_letter", "shop/buy", "shop/sell", "market/sell", "plain"]
    assert list(short_names(names).values()) == ["first_letter", "buy", "shop/sell", "market/sell", "plain"]
