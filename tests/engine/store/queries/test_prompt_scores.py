"""What each prompt was worth: means over agents, episodes and attempts; failures and other suites left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.store.experience import PolicyGroup
from marlaas.engine.store.queries.learning import prompt_scores
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Evaluation
from marlaas.engine.trajectories import Episode, Group

from ..playing import said


def group(number: int, *episodes: Episode, version: str = "e1") -> Group:
    return Group(number, number, 0, version, episodes, 0)


def test_prompts_are_means_of_their_episodes(store: Store, policy: int, database: Path) -> None:
    ok, bad = Episode(0, "ok", (said("a", 1.0),)), Episode(1, "ok", (said("a", 0.0), said("b", 0.5)))
    failed = Episode(2, "error", (said("a", None),))
    rewritten = Episode(0, "ok", (said("a", 0.25), said("a", 0.25), said("b", 0.75)))
    for split, suite, one in (
        ("eval", "", group(0, ok, bad, failed)),
        ("eval", "", group(1, rewritten)),
        ("eval", "", group(2, failed)),
        ("eval", "other", group(1, ok)),
        ("test", "", group(1, ok)),
        ("eval", "", group(1, ok, version="e2")),
    ):
        store.experience.add_play(split, [PolicyGroup(policy, one, {})], step=4, suite=suite)  # type: ignore[arg-type]
    store.evaluations.add(policy, 0, Evaluation(4, "e1", 0.5, 0.1, 3, None, {}))
    with Reader(database) as reader:
        (row,) = reader.evals(1)
        assert prompt_scores(reader, 1, row) == {0: pytest.approx((1.0 + 0.25) / 2), 1: 0.5}
