"""The groups and failures of each step are counted as they come and go: always as counting anew would find them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.trajectories import Episode, Group

from .test_steps import commit, group

COUNTED = """SELECT g.policy, CASE g.split WHEN 'train' THEN 'train' ELSE 'eval' END AS kind, coalesce(g.step, -1),
count(*), sum((SELECT count(*) FROM trajectories j WHERE j."group" = g.id AND j.status != 'ok' AND j.speaker = ''))
FROM groups g GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


def kept(path: Path) -> list[tuple[int, str, int, int, int]]:
    """What is kept, which must be what counting finds."""
    with Reader(path) as reader:
        rows = [tuple(row) for row in reader.all("SELECT * FROM played ORDER BY policy, kind, step")]
        assert rows == [tuple(row) for row in reader.all(COUNTED)]
    return rows


def failing(number: int, version: int = 0) -> Group:
    """A group in which two members failed, not one: the further one before it was asked."""
    good = group(number, version)
    return replace(good, episodes=(*good.episodes, Episode(7, "error", ())))


def test_groups_that_come_move_and_go_are_counted(store: Store, policy: int, database: Path) -> None:
    for number in range(6):
        made = failing(number, number // 2) if number % 2 else group(number, number // 2)
        store.experience.add_group(policy, "train", made, {})
    store.experience.add_group(policy, "train", failing(0), {})  # in place of the first
    assert kept(database) == [(policy, "train", -1, 6, 10)]
    commit(store, policy, 1, [0, 1])
    commit(store, policy, 2, [2, 3])
    store.experience.add_group(policy, "eval", failing(0, 2), {}, step=2)
    store.experience.add_group(policy, "test", group(0, 2), {}, step=2)
    measured, first = (policy, "eval", 2, 2, 3), (policy, "train", 1, 2, 4)
    assert kept(database) == [measured, (policy, "train", -1, 2, 3), first, (policy, "train", 2, 2, 3)]
    store.versions.void_after(policy, 1)
    assert kept(database) == [measured, (policy, "train", -1, 4, 6), first]
    store.experience.drop_unusable(policy, 1)
    assert kept(database) == [measured, (policy, "train", -1, 2, 3), first]
    with Reader(database) as reader:
        steps = episodes.rollout_steps(reader, 1)
    assert [(one.split, one.step, one.groups, one.failures) for one in steps] == [
        ("train", 1, 2, 4), ("eval", 2, 2, 3), ("train", None, 2, 3),
    ]  # fmt: skip
