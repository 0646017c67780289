"""What came of an environment's newest episodes, by the name that tasks give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.store.environment_use import EnvironmentUse, environment_use
from marlaas.engine.store.reader import Reader
from tests.app.filling import Filling


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    filling = Filling(tmp_path / "marlaas.db")
    filling.task(environment="sums", made=1, failure="it broke", trajectories=4)
    filling.task(environment="games/guess", made=1, trajectories=2)
    return filling


def test_statuses_and_times(filling: Filling) -> None:
    filling.execute("UPDATE trajectories SET seconds = 2.0 WHERE id = 1")
    with Reader(filling.path) as reader:
        use = environment_use(reader)
    assert use["sums"] == EnvironmentUse(4, {"ok": 3, "error": 1}, 0.2, 2.0) and use["sums"].failed == 0.25
    assert use["games/guess"].episodes == 2


def test_an_episode_of_two_agents_is_one(filling: Filling) -> None:
    filling.execute("UPDATE trajectories SET member = 0, agent = 'agent ' || id WHERE \"group\" = 2")
    with Reader(filling.path) as reader:
        assert environment_use(reader)["games/guess"].episodes == 1


def test_only_the_newest_count(filling: Filling) -> None:
    with Reader(filling.path) as reader:
        assert set(environment_use(reader, newest=2)) == {"games/guess"}
