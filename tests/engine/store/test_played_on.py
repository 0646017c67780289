"""A step says on which environment version its newest group was played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store

from .test_steps import commit, group


def versions(database: Path) -> list[tuple[int, str]]:
    with Reader(database) as reader:
        return [tuple(row) for row in reader.all("SELECT number, environment_version FROM steps ORDER BY number")]


def test_of_the_newest_group(store: Store, policy: int, database: Path) -> None:
    for number, version in enumerate(("old", "old", "old", "fresh")):
        store.experience.add_group(policy, "train", replace(group(number), environment_version=version), {})
    commit(store, policy, 1, [0, 1])
    commit(store, policy, 2, [3, 2])
    commit(store, policy, 3, [])
    assert versions(database) == [(1, "old"), (2, "fresh"), (3, "")]
