"""The checks that judge figures: instances, variety, lengths, rewards, latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import (
    CONSTANTS,
    EMPTY,
    HOPELESS,
    LEAST,
    Pace,
    Played,
    draws,
    reply_again,
)
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure
from marlaas.plugins import Episode

from .scripted import Clock, Scripted, asking, ended, judged, levels, only, scored

GOOD = [asking(f"task {index}", index=index) for index in range(10)]


def test_instances_that_fail_are_counted_and_the_first_is_named() -> None:
    failed = ended(EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "env.py", 12)), "eval", 3)
    late = ended(EpisodeOutcome("timeout", failure=Failure("the episode took longer than 10 s")), "eval", 5)
    finding = only(judged(checks.check_instances, draws=[*GOOD, failed, late]))
    assert finding.level == "error"
    assert finding.message == (
        "2 of 12 instances have no first prompt: eval instance 3 ends before it: env.py:12: KeyError: 'x'."
    )


def test_instances_that_are_skipped_or_never_ask() -> None:
    skipped = [ended(EpisodeOutcome("skip"))] * 3
    assert only(judged(checks.check_instances, draws=[*GOOD, *skipped])).level == "note"
    assert only(judged(checks.check_instances, draws=[*GOOD[:2], *skipped])).level == "warning"
    silent = only(judged(checks.check_instances, draws=[*GOOD, ended(EpisodeOutcome("ok", {"agent": 1.0}), index=7)]))
    assert silent.level == "warning" and "end without asking the model, such as train instance 7" in silent.message
    assert judged(checks.check_instances, draws=GOOD) == []


def test_variety() -> None:
    held_out = [asking("the same", "eval", index) for index in range(8)]
    findings = judged(checks.check_variety, draws=[*GOOD, *held_out])
    assert levels(findings) == ["warning", "note"]
    assert findings[0].message.startswith("All 8 eval prompts are the same.")
    assert findings[1].message == "10 of 10 train prompts differ."
    assert levels(judged(checks.check_variety, draws=held_out[:7])) == ["note"]


def test_nonsense_that_pays_more_than_a_wrong_reply() -> None:
    def invalid(reward: float, index: int) -> Played:
        return Played(EMPTY, index, EpisodeOutcome("ok", {"agent": reward}, invalid="no number"))

    wrong = [scored(-0.1, CONSTANTS[1], 3), scored(1.0, CONSTANTS[2], 3), scored(0.5, CONSTANTS[1], 4)]
    found = judged(checks.check_rewards, odd=[*wrong, invalid(0.0, 4), invalid(0.0, 3)])
    assert levels(found) == ["note", "warning"]
    assert found[1].message == (
        "It pays to be unreadable: at train instance 3 the empty reply is invalid and earns 0, the answer '0' is not"
        " and earns -0.1. Give Invalid a reward= below all."
    )
    assert levels(judged(checks.check_rewards, odd=[*wrong, invalid(0.0, 3)], ranked=True)) == ["note"]
    assert levels(judged(checks.check_rewards, odd=[*wrong, invalid(-0.1, 3), invalid(0.2, 4)])) == ["note"]


def test_programs_that_run_out_of_time() -> None:
    def ran(timeouts: float, index: int) -> Played:
        return Played(EMPTY, index, EpisodeOutcome("ok", {"agent": 0.0}, metrics={"sandbox_timeouts": timeouts}))

    assert judged(checks.check_sandbox, odd=[scored(1.0), ran(0.0, 0)]) == []
    finding = only(judged(checks.check_sandbox, odd=[scored(1.0), ran(0.0, 0), ran(2.0, 7), ran(1.0, 8)]))
    assert finding.level == "warning"
    assert finding.message.startswith("In 2 of 3 episodes a program in the sandbox ran out of time, such as at train")
    assert "instance 7, given the empty reply" in finding.message


def test_eval_prompts_that_repeat() -> None:
    """10 rows with ``prompts = 64``: each is asked six times."""
    repeated = [asking(f"row {index % 10}", "eval", index) for index in range(64)]
    findings = judged(checks.check_variety, draws=[*GOOD, *repeated])
    assert levels(findings) == ["warning", "note"]
    assert findings[0].message.startswith("Only 10 of 64 eval prompts differ: what is asked again tells nothing new.")


@pytest.mark.parametrize(("context", "level"), [(100, "note"), (16, "warning"), (15, "error"), (4, "error")])
def test_lengths(context: int, level: str) -> None:
    seen = [asking("x" * length, index=length) for length in (1, 2, 15)]
    finding = only(judged(checks.check_lengths, lengths=[(len(drawn.text), drawn) for drawn in seen], context=context))
    assert finding.level == level
    text = (
        f"First prompts have 6 tokens on average, at most 15 (train instance 15); a conversation has room for {context}"
    )
    assert finding.message.startswith(text)


def test_lengths_without_a_base_are_characters() -> None:
    finding = only(judged(checks.check_lengths, lengths=[(len(drawn.text), drawn) for drawn in GOOD]))
    assert finding.level == "note" and "6 characters on average, at most 6;" in finding.message
    assert judged(checks.check_lengths) == []


async def test_prompts_of_megabytes_are_not_all_kept() -> None:
    async def play(ep: Episode) -> float:
        await ep.ask(f"{ep.index}" + "x" * (1 << 22))
        return 1.0

    made = await draws(Scripted(play), [("train", index) for index in range(64)], Pace(60), 1.0)
    assert len(made) == 4


def test_rewards() -> None:
    played = [scored(reward) for reward in (0.0, 0.0, 1.0, 0.0)]
    finding = only(judged(checks.check_rewards, odd=played))
    assert finding.message == "Canned replies earned 0 to 1, 0.25 on average (standard deviation 0.43)."
    assert only(judged(checks.check_rewards, odd=[scored(-500.0)])).level == "warning"
    assert judged(checks.check_rewards, odd=[]) == []


async def test_a_reward_that_is_thrown() -> None:
    dice = iter(range(100))

    async def play(ep: Episode) -> float:
        await ep.ask("x")
        return next(dice) / 100

    played = [scored(0.5, index=index) for index in range(30)]
    repeated = await reply_again(Scripted(play), played, Pace(60), 1.0)
    note, changed = judged(checks.check_rewards, odd=played, repeated=repeated)
    assert (note.level, changed.level) == ("note", "warning")
    assert "the empty reply at train instance 0 earns 0.5, then 0. Draw what is random from ep.rng" in changed.message


def timed(start: float, first: float, turns: list[float]) -> list[Finding]:
    odd = [replace(scored(0.0), turns=tuple(turns))]
    return judged(checks.check_latency, start=start, draws=[replace(GOOD[0], seconds=first)], odd=odd)


@pytest.mark.parametrize(
    ("start", "turns", "expected"),
    [
        (0.1, [0.001] * 9, ["note", "note"]),
        (11.0, [0.001] * 9, ["warning", "note"]),
        (0.1, [0.001] * 9 + [6.0], ["note", "warning"]),
        (0.1, [1.5] * 9, ["note", "warning"]),
        (0.1, [], ["note"]),
    ],
)
def test_latency(start: float, turns: list[float], expected: list[str]) -> None:
    assert levels(timed(start, 0.2, turns)) == expected


def test_latency_is_spoken_in_fitting_units() -> None:
    start, turn = timed(0.075, 2.0, [0.0004, 0.0004, 0.02])
    assert start.message == "Its process takes 75 ms to start and 2.0 s to its first prompt."
    assert turn.message == "A turn takes 0.4 ms of its own time (median of 3), 20 ms at worst."


async def test_a_pace_ends_when_its_share_of_the_time_is_used_up() -> None:
    clock = Clock()
    pace = Pace(10, clock=clock)
    taken = []
    async for item in pace.take(range(100), share=0.5):
        clock.now += 1
        taken.append(item)
    assert taken == [0, 1, 2, 3, 4, 5]
    assert [item async for item in pace.take("abc", share=0.1)] == ["a", "b"] and LEAST == 2


async def test_hopeless_draws_are_given_up() -> None:
    async def play(ep: Episode) -> float:
        raise KeyError("x")

    made = await draws(Scripted(play), [("train", index) for index in range(64)], Pace(60), 1.0)
    assert len(made) == HOPELESS
