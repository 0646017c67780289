"""What is said of each reward, and what all of them come to."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.replay import Replayed, summarise, verdicts
from marlaas.engine.store.queries.episodes import RecordedAgent, RecordedEpisode, RecordedGroup
from marlaas.engine.trajectories import Failure

OLD = RecordedEpisode(2, "ok", {"agent": RecordedAgent((), (), 0.5, False, 4)}, {"style": 1.0, "length": 3.0})
FAILED = RecordedEpisode(2, "error", {"agent": RecordedAgent((), (), None, False, 4)}, failure="KeyError: 'x'")
SILENT = RecordedEpisode(2, "error", {}, failure="no row")


def ok(reward: float, **parts: float) -> EpisodeOutcome:
    return EpisodeOutcome("ok", {"agent": reward}, parts)


def group(*episodes: RecordedEpisode) -> RecordedGroup:
    return RecordedGroup(7, 7, "v1", 4, episodes)


@pytest.mark.parametrize(
    ("replayed", "kind", "new", "reason"),
    [
        (Replayed(OLD, ok(0.5)), "unchanged", 0.5, ""),
        (Replayed(OLD, ok(0.25, style=1.0, length=2.0, new=1.0)), "changed", 0.25, "length 3 → 2, new - → 1"),
        (Replayed(OLD, EpisodeOutcome("ok", {"agent": -1.0}, invalid="no move")), "changed", -1.0, "invalid: no move"),
        (Replayed(OLD, EpisodeOutcome("skip")), "changed", None, "the episode ends as skip"),
        (Replayed(FAILED, ok(1.0)), "changed", 1.0, "it had no reward: KeyError: 'x'"),
        (Replayed(FAILED, EpisodeOutcome("skip")), "unchanged", None, ""),
        (
            Replayed(OLD, EpisodeOutcome("error", failure=Failure("boom", "p.py", 3))),
            "failing",
            None,
            "boom (p.py:3)",
        ),
        (Replayed(OLD, EpisodeOutcome("timeout")), "failing", None, "timeout"),
        (Replayed(OLD, ok(0.5), "it says 'b'"), "not comparable", 0.5, "it says 'b'"),
        (Replayed(OLD, None, "it asks more"), "not comparable", None, "it asks more"),
        (Replayed(SILENT, EpisodeOutcome("error", failure=Failure("no row"))), "failing", None, "no row"),
    ],
)
def test_what_became_of_a_reward(replayed: Replayed, kind: str, new: float | None, reason: str) -> None:
    (verdict,) = verdicts(group(replayed.recorded), [replayed])
    assert (verdict.kind, verdict.new, verdict.reason) == (kind, new, reason)
    assert (verdict.step, verdict.group, verdict.member) == (4, 7, 2)


def test_agents_that_spoke_have_own_steps_and_verdicts() -> None:
    agents = {"a": RecordedAgent((), (), 1.0, False, 3), "b": RecordedAgent((), (), 0.0, False, None)}
    replayed = Replayed(RecordedEpisode(0, "ok", agents), EpisodeOutcome("ok", {"a": 1.0, "b": 0.5, "silent": 0.0}))
    found = verdicts(group(), [replayed])
    assert [(one.agent, one.step, one.kind) for one in found] == [("a", 3, "unchanged"), ("b", None, "changed")]


def test_means_are_over_what_can_be_compared() -> None:
    replayed = [
        Replayed(OLD, ok(0.5)),
        Replayed(OLD, ok(1.0)),
        Replayed(FAILED, ok(1.0)),
        Replayed(OLD, ok(0.0), "it says 'b'"),
        Replayed(OLD, EpisodeOutcome("error")),
    ]
    found = summarise(verdicts(group(), replayed))
    assert (found.rewards, found.unchanged, found.changed, found.not_comparable, found.failing) == (5, 1, 2, 1, 1)
    assert (found.mean_before, found.mean_after) == (0.5, 0.75)
    assert summarise([]).mean_before is None
