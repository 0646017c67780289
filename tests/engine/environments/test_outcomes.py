"""Every outcome is counted once, whatever the disk does meanwhile."""

from __future__ import annotations

from collections import Counter

from marlaas.engine.environments.outcomes import Counted, OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure

OK = EpisodeOutcome("ok", {"agent": 1.0}, seconds=0.4)
BROKEN = EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "shop.py", 7), seconds=0.1)


def statuses(counted: Counted) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in counted.outcomes:
        found[one.status] += one.episodes
    return +found


def test_outcomes_add_up_by_environment_version_and_status() -> None:
    counts = OutcomeCounts()
    for outcome in (OK, OK, BROKEN):
        counts.add("shop/buy", "v1", outcome)
    counts.add("shop/buy", "v2", OK)
    counted = counts.take()
    assert sorted((one.version, one.status, one.episodes) for one in counted.outcomes) == [
        ("v1", "error", 1),
        ("v1", "ok", 2),
        ("v2", "ok", 1),
    ]
    assert [(last.version, last.failure.line) for last in counted.failures] == [("v1", 7)]
    assert counts.take() == Counted()


def test_what_is_put_back_adds_to_newer_outcomes() -> None:
    counts = OutcomeCounts()
    counts.add("shop/buy", "v1", BROKEN)
    refused = counts.take()
    newer = EpisodeOutcome("timeout", failure=Failure("it took too long"))
    counts.add("shop/buy", "v1", newer)
    counts.put_back(refused)
    counted = counts.take()
    assert statuses(counted) == {"error": 1, "timeout": 1} and counted.failures[0].failure == newer.failure


def test_a_ranking_that_fails_takes_its_members_with_it() -> None:
    counts = OutcomeCounts()
    for _ in range(4):
        counts.add("shop/buy", "v1", OK)
    counts.overturn("shop/buy", "v1", [OK, OK], BROKEN)
    assert statuses(counts.take()) == {"ok": 2, "error": 2}


def test_what_was_cut_off_or_skipped_is_nobodys_failure() -> None:
    counts = OutcomeCounts()
    counts.add("shop/buy", "v1", EpisodeOutcome("cancelled", failure=Failure("a newer version took its place")))
    assert counts.take().failures == ()
