"""How findings read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from marlaas.app.words.environments.facts import mark, spoken, troubles, verdict
from marlaas.engine.environments.conformance.finding import Finding, Level
from marlaas.engine.store.rows import EnvironmentRow

from ...commanding import Commander
from ...filling import Filling

ROW = EnvironmentRow("a/b", "v1", "ready", (), "", "", "", 0, "", 0.0)


def of(*levels: Level) -> tuple[Finding, ...]:
    return tuple(Finding("baseline", level, "x") for level in levels)


@pytest.mark.parametrize(
    ("levels", "shown", "said"),
    [
        ((), "✓", "nothing wrong"),
        (("note",), "✓", "nothing wrong"),
        (("warning", "note"), "! 1", "1 warning"),
        (("error", "error", "warning"), "✗ 2", "2 errors and 1 warning"),
    ],
)
def test_marks_and_verdicts(levels: tuple[Level, ...], shown: str, said: str) -> None:
    assert mark(replace(ROW, findings=of(*levels), checked=1.0)) == shown
    assert verdict(of(*levels)) == said


def test_what_was_not_checked_has_no_mark() -> None:
    assert mark(ROW) == ""


def test_a_finding_is_one_safe_line() -> None:
    assert spoken(Finding("baseline", "error", "two\nlines \x1b[2Jand more")) == "✗ baseline    two lines and more"
    assert troubles(of("note", "error")) == list(of("error"))


def test_findings_of_the_serving_version_are_listed(filling: Filling, marlaas: Commander) -> None:
    for name, version in (("sums", "9f2c41aa"), ("old", "another")):
        filling.environment(name)
        found = [{"check": "baseline", "level": level, "message": f"{level} \x1b[2J"} for level in ("error", "note")]
        filling.insert(
            "conformance", environment=name, version=version, base="", findings=json.dumps(found), created=filling.now
        )
    said = marlaas("env", "list")
    old, sums = said.out.splitlines()[1:]
    assert "✗ 1" in sums and "✗" not in old
    assert "sums: ✗ baseline    error\n" in said.err and "note" not in said.err and "\x1b" not in said.err
    assert [len(row["findings"]) for row in marlaas("env", "list", "--json").json] == [0, 2]
