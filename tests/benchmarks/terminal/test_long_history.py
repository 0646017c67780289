"""A long history reads like a real home, and what views ask of it costs no more as it grows.

What a question costs is counted in instructions of sqlite's machine, which are the same on every processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.terminal.long_history import GROUPS, MEMBERS, Shape, history, name
from marlaas.app.reading import HomeReader, opened
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.base.model import load_base
from marlaas.engine.home.paths import Home
from marlaas.engine.store import EventFilter, Store
from marlaas.engine.store.queries.reader import Reader

SHAPE = Shape(tasks=3, every=4, prompts=4, events=40, variety=8)
FEW, MANY = 256, 1024
"""Training groups; half of them are the long task's, the last."""
LONG = 3
SLACK = 60
"""Instructions that a question may cost more: a count that is kept has one digit more, a list one entry more."""


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Home]:
    few, many = (history(tmp_path_factory.mktemp("homes") / str(groups), groups, SHAPE) for groups in (FEW, MANY))
    return few, many


def newest(reader: HomeReader) -> int:
    row = reader.task(LONG)
    assert row is not None
    return row.step


def conversations(reader: HomeReader) -> list[int]:
    (group, *_) = reader.group_ids(LONG, "train", newest(reader))
    return list(reader.conversation_ids(LONG, group=group))


QUESTIONS: dict[str, Callable[[HomeReader], object]] = {
    "task": lambda reader: reader.task(LONG),
    "tenants": lambda reader: reader.tenants("2026-11-21"),
    "rewards": lambda reader: reader.rewards(LONG, limit=10),
    "pace": lambda reader: reader.pace(LONG, over=5),
    "newest step": lambda reader: reader.steps(LONG, newest(reader) - 1),
    "recent means": lambda reader: reader.recent_means(LONG, over=5),
    "ages": lambda reader: reader.group_ages(LONG, newest(reader) - 5),
    "first step": lambda reader: reader.first_step(LONG),
    "newest steps": lambda reader: reader.rollout_steps(LONG, newest(reader) - 3),
    "groups of a step": lambda reader: reader.group_ids(LONG, "train", newest(reader)),
    "failed groups of a step": lambda reader: reader.group_ids(LONG, "train", newest(reader), failures=True),
    "groups of an evaluation": lambda reader: reader.group_ids(LONG, "eval", newest(reader)),
    "groups that wait": lambda reader: reader.group_ids(LONG, "train", None),
    "a group by number": lambda reader: reader.group_ids_numbered(LONG, "train", 9),
    "a measured group": lambda reader: reader.group_ids_numbered(LONG, "eval", 1, step=4),
    "groups": lambda reader: reader.group_rows(reader.group_ids(LONG, "train", newest(reader))),
    "conversations of a step": lambda reader: reader.conversation_ids(LONG, "train", newest(reader)),
    "conversations that came": lambda reader: reader.conversation_ids(LONG, after=conversations(reader)[-1] - 1),
    "conversations": lambda reader: reader.conversation_rows(conversations(reader)),
    "an episode": lambda reader: reader.episode(conversations(reader)[0]),
    "newest rollout": lambda reader: reader.newest_rollout(LONG),
    "newest group of the first": lambda reader: reader.newest_group(1),
    "kept versions": lambda reader: reader.kept_versions(reader.kept_marks()),
    "versions on the disk": lambda reader: reader.versions(LONG, kept=True),
    "newest events": lambda reader: reader.newest_events(EventFilter(), 0, 10),
}


class Counting:
    """Counts how often it is called, and lets sqlite go on."""

    count = 0

    def __call__(self) -> int:
        self.count += 1
        return 0


def cost(reader: HomeReader, question: Callable[[HomeReader], object]) -> int:
    """Instructions of sqlite's machine."""
    assert isinstance(reader, Reader)
    counting = Counting()
    reader._connection.set_progress_handler(counting, 1)
    question(reader)
    reader._connection.set_progress_handler(None, 0)
    return counting.count


@pytest.fixture(scope="module")
def readers(homes: tuple[Home, Home]) -> Iterator[tuple[HomeReader, HomeReader]]:
    with opened(homes[0]) as few, opened(homes[1]) as many:
        few.tasks(), many.tasks()  # sums up the tokens of all steps, once
        yield few, many


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_costs_more(readers: tuple[HomeReader, HomeReader], question: str) -> None:
    few, many = (cost(reader, QUESTIONS[question]) for reader in readers)
    assert few > 0 and many <= few + few // 10 + SLACK, f"{question} costs {many} instructions instead of {few}."


def test_what_a_task_begins_with_is_not_searched_for(homes: tuple[Home, Home]) -> None:
    costs = []
    for home in homes:
        with closing(Store(home.database, "tiny")) as store:
            counting = Counting()
            store._connection.set_progress_handler(counting, 1)
            policy = store.versions.policy(LONG, "policy", {})
            assert store.experience.environment_versions() == {"e1"}
            assert store.experience.first_environment(policy) == store.experience.last_environment(policy) == "e1"
            assert store.experience.last_environment(policy, "another") is None
            costs.append(counting.count)
    assert 0 < costs[1] <= costs[0] + SLACK


def test_a_long_history_reads_like_a_real_home(homes: tuple[Home, Home]) -> None:
    with opened(homes[0]) as reader:
        done, duel, long = reader.tasks()
        assert [done.state, duel.state, long.state] == ["done", "done", "running"] and long.name == name(2)
        assert long.step == FEW // 2 // GROUPS and [one.name for one in duel.policies] == ["first", "second"]
        assert done.findings and long.score is not None and reader.evals(LONG)[0].step == 4
        groups = reader.group_ids(LONG, "train", long.step)
        assert len(groups) == GROUPS and len(reader.conversation_ids(LONG, group=groups[0])) == MEMBERS
        kept = reader.versions(LONG, kept=True)
    state = read_state(Path(kept[0].path))
    assert state.resumable and state.header.base == load_base("tiny").fingerprint and kept[0].number == long.step
