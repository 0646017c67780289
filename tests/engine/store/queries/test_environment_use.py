"""How episodes ended reaches the screen: added up by minute, thinned, forgotten after a day."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.store.queries.machine import EnvironmentUse, environment_use
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.trajectories import EpisodeStatus, Failure

NOW = 1_800_000_000.0


class World:
    """A store, and its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path, "tiny")

    def ended(
        self, status: EpisodeStatus, count: int = 1, seconds: float = 0.5, version: str = "v1", at: float = NOW
    ) -> None:
        """Some episodes that ended alike."""
        counts = OutcomeCounts()
        failure = Failure(f"{status} of {version}", "shop.py", 7) if status in ("error", "timeout") else None
        for _ in range(count):
            counts.add("shop/buy", version, EpisodeOutcome(status, seconds=seconds, failure=failure))
        self.store.environments.add_outcomes(counts.take(), at)

    def use(self, now: float = NOW) -> EnvironmentUse:
        """What a screen reads."""
        with Reader(self.path) as reader:
            return environment_use(reader, now).get("shop/buy", EnvironmentUse())

    def rows(self) -> int:
        """In the table."""
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM outcomes").fetchone()[0])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "marlaas.db")
    yield world
    world.store.close()


def test_rates_count_episodes_whose_groups_never_closed(world: World) -> None:
    world.ended("ok", 1)
    for _ in range(3):
        world.ended("error", 100)
    world.ended("skip", 99)
    use = world.use()
    assert use.statuses == {"ok": 1, "error": 300, "skip": 99} and use.episodes == 400 and use.failed == 0.75
    assert use.failure is not None and (use.failure.message, use.failure.file, use.failure.line) == (
        "error of v1",
        "shop.py",
        7,
    )


def test_times_are_of_episodes_that_were_played_to_their_end(world: World) -> None:
    world.ended("ok", 18, seconds=0.5)
    world.ended("ok", 2, seconds=8.0)
    world.ended("timeout", 50, seconds=60.0)
    use = world.use()
    assert use.median == pytest.approx(0.5, rel=0.2) and use.slow == pytest.approx(8.0, rel=0.2)


def test_versions_are_told_apart(world: World) -> None:
    world.ended("ok", 9, version="v1")
    world.ended("error", 3, version="v2", at=NOW - 60)
    world.ended("timeout", 1, version="v1", at=NOW - 120)
    use = world.use()
    assert {version: one.failed for version, one in use.versions.items()} == {"v1": 0.1, "v2": 1.0}
    assert use.failure is not None and use.failure.message == "error of v2"


def test_only_the_last_hour_is_told(world: World) -> None:
    world.ended("error", 5, at=NOW - 3700)
    world.ended("ok", 5, at=NOW - 3500)
    assert world.use().statuses == {"ok": 5} and world.use().failure is None


def test_old_minutes_become_hours_and_a_day_is_all_that_is_kept(world: World) -> None:
    for minute in range(0, 26 * 60, 10):
        world.ended("ok", 1, at=NOW - 60 * minute)
    world.store.environments.thin_outcomes(NOW)
    world.store.environments.thin_outcomes(NOW)
    assert world.rows() <= 7 + 5 + 24
    assert world.use().episodes in (6, 7)
    with closing(sqlite3.connect(world.path)) as connection:
        assert connection.execute("SELECT sum(episodes) FROM outcomes").fetchone()[0] in range(24 * 6 - 6, 24 * 6 + 2)
