"""Rows of data from what another task wrote: of each group the best episode (rejection sampling), or best and worst."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..home.paths import Home
from ..spec.losses import DPO
from ..spec.task import DataSpec, TaskSpec, rollouts_of
from ..store.queries.episodes import RecordedAgent, RecordedGroup, recorded_groups
from ..store.queries.reader import Reader
from .submission.references import task_number

_ALL = 1 << 30
THINKING, ASSISTANT = "thinking", "assistant"


def with_rollouts(home: Home, task: int, spec: TaskSpec) -> TaskSpec:
    """The task with files in place of ``rollouts of TASK``, written once. Raises ``ConfigError``."""

    def data(own: DataSpec) -> DataSpec:
        source = rollouts_of(own.path)
        return own if source is None else replace(own, path=str(_written(home, task, source, spec.kind == DPO)))

    return replace(
        spec, data=data(spec.data), mixture=tuple(replace(part, data=data(part.data)) for part in spec.mixture)
    )


def _written(home: Home, task: int, source: str, pairs: bool) -> Path:
    with Reader(home.database) as reader:
        number = task_number(int(source) if source.isdigit() else source, reader.known_tasks())
        file = home.scratch / "rollouts" / f"{task}-of-{number}.jsonl"
        if file.exists():
            return file
        components = {"", *(part.get("name") or part["environment"] for part in _parts(reader, number))}
        groups = [group for name in components for group in recorded_groups(reader, number, "train", _ALL, name)]
    rows = list(pair_rows(groups) if pairs else best_rows(groups))
    if not rows:
        none = "no group has two rewards" if pairs else "none earned more than its lowest reward"
        raise ConfigError(f"Task {number} has no episodes to learn from: {none}.", "Name another in 'data.path'.")
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    os.replace(draft, file)
    return file


def _parts(reader: Reader, task: int) -> list[dict[str, Any]]:
    return list(reader.task_config(task).get("mixture", ()))


def best_rows(groups: Iterable[RecordedGroup]) -> Iterator[dict[str, Any]]:
    """A conversation for each group and agent: that of the highest reward, the first of several.

    Groups without a reward above the lowest of all are left out: their best is a failure, too.
    """
    spoken = _spoken(groups)
    lowest = min((reward for own in spoken for reward, _ in own), default=0.0)
    for own in spoken:
        reward, best = max(own, key=itemgetter(0))
        if reward > lowest:
            yield {"messages": best, "reward": reward}


def pair_rows(groups: Iterable[RecordedGroup]) -> Iterator[dict[str, Any]]:
    """For each group and agent the conversations of the highest and the lowest reward, if these differ."""
    for own in _spoken(groups):
        most, least = max(own, key=itemgetter(0)), min(own, key=itemgetter(0))
        if most[0] > least[0]:
            yield {"chosen": most[1], "rejected": least[1]}


def _spoken(groups: Iterable[RecordedGroup]) -> list[list[tuple[float, list[dict[str, str]]]]]:
    """Reward and conversation of each episode, for each group and agent."""
    found: dict[tuple[int, int, str], list[tuple[float, list[dict[str, str]]]]] = {}
    for place, group in enumerate(groups):
        for episode in group.episodes:
            for agent, own in episode.agents.items():
                if own.reward is not None and own.replies and (messages := _messages(own)):
                    found.setdefault((place, group.number, agent), []).append((own.reward, messages))
    return list(found.values())


def _messages(own: RecordedAgent) -> list[dict[str, str]]:
    """Up to the last reply, without thoughts."""
    said = [{"role": turn.role, "content": turn.text} for turn in own.turns if turn.role != THINKING]
    last = max((place for place, message in enumerate(said) if message["role"] == ASSISTANT), default=-1)
    return said[: last + 1]
