"""Which of a task's settings are defaults, and where tasks differ."""

from __future__ import annotations

from marlaas.app.operations.settings_file import Setting, settings
from marlaas.app.tui.screens.dialogs import table
from marlaas.engine.spec.task import TaskSpec


def by_key(rows: list[Setting]) -> dict[str, Setting]:
    return {row.key: row for row in rows}


def test_only_what_was_said_is_chosen() -> None:
    config = TaskSpec("lab", "sums", "arithmetic", steps=60).to_json()
    chosen = {row.key for row in settings([config], {}) if not row.default}
    assert chosen == {"tenant", "name", "environment"}
    config["train"]["learning_rate"] = 1e-3
    config["queue"]["depends_on"] = [3]
    chosen = {row.key for row in settings([config], {}) if not row.default}
    assert chosen == {"tenant", "name", "environment", "train.learning_rate", "queue.depends_on"}


def test_an_environment_has_defaults_of_its_own() -> None:
    config = {**TaskSpec("lab", "sums", "arithmetic").to_json(), "environment_config": {"digits": 3}}
    rows = by_key(settings([config], {"digits": 2, "carry": True}))
    assert rows["environment_config.digits"] == Setting("environment_config.digits", ("3",), False, False)
    assert rows["environment_config.carry"].default and rows["environment_config.carry"].values == ("true",)


def test_what_differs_is_marked_whatever_its_kind() -> None:
    one = {"a": 1, "b": True, "c": {"d": [1, 2]}, "e": None}
    other = {"a": 1.0, "b": 1, "c": {"d": [1, 3]}, "f": "x"}
    rows = by_key(settings([one, other], {}))
    assert [key for key, row in rows.items() if row.differs] == ["b", "c.d", "f"]
    assert rows["c.d"].values == ("[1, 2]", "[1, 3]") and rows["f"].values == ("-", "x")


def test_values_are_safe_text() -> None:
    (row,) = settings([{"[/]\x1b[2J": "\x1b[31m[b\n" + "x" * 100_000}], {})
    assert row.key == "[/]" and row.values[0].startswith("[b x") and len(row.values[0]) == 200


def test_the_table_fits_its_width() -> None:
    rows = settings([TaskSpec("lab", "名前" * 30, "arithmetic").to_json()] * 4, {})
    for width in (40, 80, 130):
        lines = table([1, 22, 333, 4444], rows, width).plain.splitlines()
        assert len(lines) == len(rows) + 1 and "task 4444" in lines[0]
    assert "defaults" in table([1], [], 80).plain
