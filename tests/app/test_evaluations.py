"""Everything that walks over tasks meets one that measures and trains nothing."""

from __future__ import annotations

import tomllib

import pytest

from marlaas.app.client.home import Home as Client
from marlaas.app.reading import opened
from marlaas.app.tui.form.form import copied
from marlaas.app.tui.widgets.task_charts import MetricList
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import parse

from .commanding import Commander, FakeEngine
from .driving import driving
from .filling_evaluation import fill_evaluation


@pytest.fixture
def filled(home: Home) -> Home:
    fill_evaluation(home.database)
    return home


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("list",), "measured"),
        (("list", "--json"), '"kind": "eval"'),
        (("show", "2"), "measured     2 of 3"),
        (("show", "2", "--toml"), 'kind = "eval"'),
        (("metrics", "2"), "0.75"),
        (("metrics", "1", "2", "--csv"), "1@best"),
        (("rollouts", "2"), "held-out"),
        (("rollouts", "2", "--eval", "--policy", "1@3"), "held-out"),
        (("compare", "2"), "-0.500 (-1.419 to +0.419)"),
        (("compare", "1", "2"), "not paired"),
        (("matrix", "2"), ""),
        (("stats",), ""),
        (("stats", "2"), ""),
        (("adapters", "list", "2"), ""),
        (("tenants",), "lab"),
        (("logs", "2"), ""),
        (("home", "check", "--quick"), ""),
    ],
)
def test_verbs(filled: Home, marlaas: Commander, engine: FakeEngine, words: tuple[str, ...], shows: str) -> None:
    said = marlaas(*words)
    assert "unexpected" not in said.err and shows in said.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("adapters", "export", "2", "--out", "out"), "There is no adapter '2'"),
        (("adapters", "delete", "2"), "There is no adapter '2'"),
        (("show", "2", "--policy", "other"), "no policy 'other'"),
    ],
)
def test_what_it_has_not(filled: Home, marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas(*words)
    assert said.code != 0 and sentence in said.err and "unexpected" not in said.err


def test_python_compares_what_was_measured(filled: Home) -> None:
    pairs = Client(filled.root).compare(2)
    assert [(pair["of"], pair.get("mean"), pair["problem"]) for pair in pairs] == [
        ("2 1@3", -0.5, ""),
        ("2 base", None, "no score"),
    ]


async def test_the_task_page_lists_the_versions(filled: Home) -> None:
    async with driving(filled, (120, 36)) as driver:
        await driver.open_task(2)
        text = driver.text()
        assert "0.75 ± 0.25" in text and "not yet" in text and "smoothed" not in text
        assert "0 + 2 =" in text or "3 + 2 =" in text, "what was said is shown"
        await driver.press("down")
        assert driver.app.screen.query_one(MetricList).chosen == "1@3"
        assert driver.app.learner is not None and driver.app.learner.policy == "1@3"
        await driver.open_task(1)
        assert "smoothed" in driver.text() and "1@best" not in driver.text()


async def test_the_dialog_of_what_is_compared_says_by_how_much(filled: Home) -> None:
    async with driving(filled, (120, 40)) as driver:
        for view in "12345678":
            driver.app.selected = 2
            await driver.press(view)
            assert driver.text().strip(), view
        driver.app.open_task(2)
        await driver.press("c")
        await driver.read()
        await driver.press("d")
        text = driver.text()
        assert "held-out 0.75 at step 2" in text and "-0.500 (-1.419 to +0.419)" in text


def test_a_copy_may_have_other_versions(filled: Home, marlaas: Commander) -> None:
    said = marlaas("show", "2", "--toml").out
    table = tomllib.loads(said)
    assert "steps" not in table and table["versions"] == ["1@best", "1@3", "base"]
    assert parse({**table, "versions": ["base"]}, "a copy").steps == 1
    with opened(filled) as reader:
        copy = copied(reader, 2)
    assert copy is not None and "steps" not in copy
