"""Held-out scores in the store: what decides, what does not, and what rows of an earlier program mean."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.store.database import open_database
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Evaluation, NewVersion, best

from ...old_homes import unpack

WHOLE = Evaluation(
    1,
    "env1",
    0.5,
    0.1,
    15,
    0.25,
    {"lenient": 0.75},
    failures=1,
    prompts=8,
    samples=2,
    series="s",
    best_of=0.6,
    pass_at=0.7,
)


def versions(store: Store, policy: int, many: int) -> list[int]:
    """Ids of as many versions, from 0 on."""
    first = store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 9))
    made = (
        store.versions.commit_step(policy, NewVersion(n, f"v{n}", "sum", f"v{n}", 9), [], 1, {}) for n in range(1, many)
    )
    return [first.id, *(version.id for version in made)]


@pytest.mark.parametrize(
    ("scores", "number"), [({20: 0.5, 10: 0.5, 0: 0.1}, 10), ({1: 0.1, 2: 0.2}, 2), ({3: -1.0}, 3)]
)
def test_of_equal_scores_the_first_is_the_best(scores: dict[int, float], number: int) -> None:
    assert best(scores) == number


def test_all_that_a_score_rests_on_is_read_back(store: Store, policy: int, database: Path) -> None:
    ids = versions(store, policy, 2)
    store.evaluations.add(policy, ids[1], WHOLE)
    with Reader(database) as reader:
        (row,) = reader.evals(1)
    assert row.created and replace(row, created=0.0) == WHOLE


def test_what_is_no_score_is_kept_and_decides_nothing(store: Store, policy: int, database: Path) -> None:
    ids = versions(store, policy, 3)
    store.evaluations.add(policy, ids[1], WHOLE)
    store.evaluations.add(policy, ids[2], replace(WHOLE, step=2, score=None, failures=14))
    assert store.evaluations.measured(policy, "s") == {1: 0.5, 2: None}
    assert store.evaluations.scores(policy) == {1: 0.5} and store.evaluations.best_of_each(policy) == {1}
    with Reader(database) as reader:
        task = reader.task(1)
        assert task is not None and (task.score, task.best) == (None, 0.5)
        assert [(row.score, row.failures) for row in reader.evals(1)] == [(0.5, 1), (None, 14)]


def test_every_series_has_its_best_and_the_untrained_is_none(store: Store, policy: int) -> None:
    ids = versions(store, policy, 5)
    for series, scores in {"s": (0.9, 0.4, 0.4, 0.1), "t": (0.1, 0.2, 0.3, 0.3)}.items():
        for step, score in enumerate(scores):
            store.evaluations.add(policy, ids[step], replace(WHOLE, step=step, score=score, series=series))
    assert store.evaluations.best_of_each(policy) == {1, 2}
    store.evaluations.add(policy, ids[4], replace(WHOLE, step=4, score=0.8, series="s"))
    assert store.evaluations.best_of_each(policy) == {4, 2} and store.evaluations.series(policy) == "s"


def test_suites_and_the_test_split_stay_apart(store: Store, policy: int, database: Path) -> None:
    ids = versions(store, policy, 2)
    own = replace(WHOLE, score=0.5)
    for other in (own, replace(own, suite="far", score=0.9), replace(own, split="test", score=0.8)):
        store.evaluations.add(policy, ids[1], other)
    assert store.evaluations.scores(policy) == {1: 0.5}
    assert store.evaluations.of("far").measured(policy, "s") == {1: 0.9}
    assert store.evaluations.of("", "test").measured(policy, "s") == {1: 0.8}
    with Reader(database) as reader:
        (row, *_), task = reader.versions(1), reader.task(1)
    assert task is not None and (row.score, task.score, task.best) == (0.5, 0.5, 0.5)


def test_scores_of_an_earlier_program_keep_their_meaning(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    with closing(sqlite3.connect(home.database)) as before:
        kept = before.execute("SELECT id, step, score, stderr, n, floor, environment_version FROM evals").fetchall()
    open_database(home.database).close()
    with closing(sqlite3.connect(home.database)) as after:
        rows = after.execute(
            "SELECT id, step, score, stderr, n, floor, environment_version FROM evals"
            " WHERE series = environment_version AND prompts = n AND failures = 0 AND samples = 1"
            " AND suite = '' AND split = 'eval'"
        ).fetchall()
    assert kept and rows == kept
