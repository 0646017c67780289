"""A step says on which environment version its newest group was played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sqlite_utils import Database

from marlaas.engine.store.database import open_database
from marlaas.engine.store.database.migrations import migrations
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


def test_steps_of_an_older_database_learn_it_from_their_groups(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = Database(path)
    migrations.apply(old, stop_before="m012_played_on")
    old.execute(
        "INSERT INTO tasks (id, tenant, name, environment, config, created, steps) VALUES (1, 'a','b','c','{}',1,1)"
    )
    old.execute("INSERT INTO policies (id, task, name, config, step) VALUES (1, 1, 'policy', '{}', 2)")
    for number in (1, 2):
        old.execute(
            "INSERT INTO versions (id, policy, number, name, incarnation, state, checksum, path, created)"
            " VALUES (?, 1, ?, ?, 1, 'committed', '', '', 1)",
            [number, number, f"v{number}"],
        )
        old.execute("INSERT INTO steps (policy, number, version, created) VALUES (1, ?, ?, 1)", [number, number])
    for number, step, version in ((0, 1, "a"), (1, 1, "a"), (2, 2, "a"), (3, 2, "b"), (4, None, "c")):
        old.execute(
            "INSERT INTO groups (policy, split, number, instance, version, environment_version, state, step, created)"
            " VALUES (1, 'train', ?, 0, 0, ?, 'consumed', ?, 1)",
            [number, version, step],
        )
    old.conn.commit()
    old.close()
    open_database(path).close()
    assert versions(path) == [(1, "a"), (2, "b")]
