"""What is said of an environment, on the screen as on the command line."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.words.environments.facts import Fact, facts, failed_share, takes, trouble_words
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure, EpisodeUse
from marlaas.engine.store.rows import EnvironmentRow

NOTHING = EnvironmentUse()
NOW = 1_800_000_000.0
ROW = EnvironmentRow("shop/buy", "9f2c41aa", "ready", (), "A shop.", "", "", 0, "/p/shop.py", NOW)


def told(row: EnvironmentRow = ROW, use: EnvironmentUse = NOTHING) -> list[Fact]:
    return list(facts(row, use, NOW))


def test_what_is_wrong_comes_with_its_place_and_before_the_rest() -> None:
    row = EnvironmentRow("shop/buy", "9f2c41aa", "stale", (), "", "NameError: x", "shop.py", 7, "/p/shop.py", NOW)
    state, error, *_ = told(row)
    assert state.text == "stale: an older version serves; the newest edit does not load"
    assert error == Fact("error", "shop.py:7: NameError: x", "error")


def test_the_line_of_code_stands_below_what_is_wrong_with_it() -> None:
    row = replace(ROW, state="broken", message="NameError: x", file="shop.py", line=7)
    use = EnvironmentUse({"error": 3}, failure=EpisodeFailure("KeyError: 'x'", "goods.py", 31, "v2", NOW))
    lines = {("shop.py", 7): "price = x\x1b[2J", ("goods.py", 31): "return goods['x']"}
    found = list(facts(row, use, NOW, lines))
    code = [place for place, fact in enumerate(found) if fact.level == "code"]
    assert [found[place].text for place in code] == ["7 │ price = x", "31 │ return goods['x']"]
    assert ["NameError" in found[code[0] - 1].text, "KeyError" in found[code[1] - 1].text] == [True, True]
    assert trouble_words(row, use) == "shop.py:7: NameError: x"
    assert trouble_words(ROW, use) == "goods.py:31: KeyError: 'x'" and trouble_words(ROW, NOTHING) == ""


def test_what_the_checks_found_is_wrong_where_episodes_end_well() -> None:
    found = (Finding("lengths", "note", "9 tokens."), Finding("instances", "error", "It never calls\x1b[2J `ep.ask`."))
    row = replace(ROW, findings=found, checked=NOW)
    assert trouble_words(row, NOTHING) == "It never calls `ep.ask`."
    assert trouble_words(replace(row, message="NameError: x"), NOTHING) == "NameError: x"
    assert trouble_words(replace(ROW, findings=(Finding("leaks", "warning", "x"),)), NOTHING) == ""


def test_a_label_stands_once() -> None:
    found = (Finding("baseline", "warning", "42 earns 0.61."), Finding("lengths", "note", "9 tokens."))
    row = EnvironmentRow("shop/buy", "v", "ready", (), "", "", "", 0, "p", NOW, found, NOW - 90)
    checks = [fact for fact in told(row) if fact.level or "done" in fact.text]
    assert [fact.label for fact in checks] == ["checks", "", ""]
    assert [fact.level for fact in checks] == ["warning", "note", ""] and checks[2].text == "done 1 min 30 s ago"


def test_where_nothing_was_played_that_is_said() -> None:
    assert told()[1] == Fact("last hour", "no episode has ended")


def test_processes_are_counted_with_those_who_wait() -> None:
    assert all(fact.label != "processes" for fact in told()), "nothing runs"
    row = replace(ROW, playing=1, live=1)
    assert Fact("processes", "1 process, 1 episode under way") in told(row)
    row = replace(ROW, playing=2, scoring=3, live=1024, waiting=64)
    assert Fact("processes", "2 processes, 1,024 episodes under way, 64 wait for a place, 3 more for scores") in told(
        row
    )


def test_episodes_of_two_versions_and_the_last_error() -> None:
    old, new = EpisodeUse({"ok": 1200}, 0.4, 2.1), EpisodeUse({"error": 300}, 0.0, 0.0)
    broken = EpisodeFailure("KeyError: 'x'\x1b[2J", "shop.py", 31, "v2", NOW - 42)
    use = EnvironmentUse({"ok": 1200, "error": 300}, 0.4, 2.1, {"v1": old, "v2": new}, broken)
    assert [fact.text for fact in told(use=use)[1:5]] == [
        "1,500 episodes, 20 % failed (300 error, 1,200 ok); median 400ms, p95 2.1s",
        "version v1: 1,200 episodes, 0 % failed (1,200 ok); median 400ms, p95 2.1s",
        "version v2: 300 episodes, 100 % failed (300 error)",
        "last error, version v2, 42 s ago: shop.py:31: KeyError: 'x'",
    ]


def test_few_failures_are_not_none() -> None:
    assert failed_share(EpisodeUse({"ok": 999, "timeout": 1})) == "<1 %"
    assert failed_share(EpisodeUse({"ok": 999})) == failed_share(EpisodeUse()) == "0 %"


def test_times_fit_into_six_cells() -> None:
    assert [takes(seconds) for seconds in (0.0012, 0.46, 9.96, 61.0)] == ["1ms", "460ms", "10.0s", "1m01"]
