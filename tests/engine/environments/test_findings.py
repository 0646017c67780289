"""What each check finds in what it observed: instances, leaks, rewards, junk, agents, figures."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.conformance import check as checks
from marlaas.engine.environments.conformance.check import Observed
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import (
    CONSTANTS,
    EMPTY,
    JUNK,
    Canned,
    Draw,
    Pace,
    Played,
    Subject,
    draws,
)
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.trajectories import EpisodeStatus, Failure, Split
from marlaas.plugins.messages import Answer, Ask, Message


def asking(prompt: str, split: Split = "train", index: int = 0) -> Draw:
    """A draw whose first prompt is ``prompt``."""
    return Draw(split, index, Ask("agent", (Message("user", prompt),)))


def ended(outcome: EpisodeOutcome, split: Split = "train", index: int = 0) -> Draw:
    """A draw without a prompt."""
    return Draw(split, index, outcome)


def scored(reward: float, reply: Canned = CONSTANTS[0], index: int = 0) -> Played:
    """An episode that ended with a reward."""
    return Played(reply, index, EpisodeOutcome("ok", {"agent": reward}))


def judged(check: Callable[[Observed], Iterator[Finding]], **seen: Any) -> list[Finding]:
    """What a check finds in these observations."""
    return list(check(Observed(**seen)))


def only(findings: list[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = findings
    return finding


SPLITS: tuple[Split, Split] = ("train", "eval")
ZERO = CONSTANTS[1]
GOOD = [asking(f"task {index}", index=index) for index in range(10)]


def prompts(split: Split, texts: Iterable[str]) -> list[Draw]:
    return [asking(text, split, index) for index, text in enumerate(texts)]


def same(reply: Canned, reward: float, instances: int) -> list[Played]:
    """A reply that earns so much on each instance."""
    return [scored(reward, reply, index) for index in range(instances)]


def outcome(status: EpisodeStatus = "ok", reward: float = 0.0, at: int = 0, **more: Any) -> Played:
    """What the empty reply earned at an instance."""
    return Played(EMPTY, at, EpisodeOutcome(status, {"agent": reward} if status == "ok" else {}, **more))


def paid(failure: Failure | None, *replies: Canned) -> list[Played]:
    return [Played(reply, 0, EpisodeOutcome("ok", {"agent": 0.0}, failure=failure)) for reply in replies]


def timed(start: float, first: float, turns: list[float]) -> dict[str, Any]:
    odd = [replace(scored(0.0), turns=tuple(turns))]
    return {"start": start, "draws": [replace(GOOD[0], seconds=first)], "odd": odd}


ERROR, WARNING, NOTE = "error", "warning", "note"
FAILED = ended(EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "env.py", 12)), "eval", 3)
LATE = ended(EpisodeOutcome("timeout", failure=Failure("the episode took longer than 10 s")), "eval", 5)
SKIPPED = [ended(EpisodeOutcome("skip"))] * 3
SILENT = ended(EpisodeOutcome("ok", {"agent": 1.0}), index=7)
WRONG = [scored(-0.1, ZERO, 3), scored(1.0, CONSTANTS[2], 3), scored(0.5, ZERO, 4)]
COIN = [scored(float(index % 16 != 0), ZERO, index) for index in range(64)]
NOTHING = [scored(0.0, reply, index) for reply in CONSTANTS for index in range(16)]
NUMBERS = random.Random(1)
GOLD = Failure("KeyError: 'gold'", "env.py", 4)
ONCE = Played(ZERO, 3, EpisodeOutcome("ok", {"first": 1.0, "second": 0.0}))
SWAPPED = Played(ZERO, 3, EpisodeOutcome("ok", {"first": 0.0, "second": 1.0}))
Expected = tuple[tuple[str, str], ...]
FOUND: list[tuple[Callable[[Observed], Iterator[Finding]], dict[str, Any], Expected]] = [
    (checks.check_instances, {"draws": GOOD}, ()),
    (
        checks.check_instances,
        {"draws": [*GOOD, FAILED, LATE]},
        ((ERROR, "2 of 12 instances have no first prompt: eval instance 3 ends before it: env.py:12: KeyError: 'x'."),),
    ),
    (checks.check_instances, {"draws": [*GOOD, *SKIPPED]}, ((NOTE, ""),)),
    (checks.check_instances, {"draws": [*GOOD[:2], *SKIPPED]}, ((WARNING, ""),)),
    (
        checks.check_instances,
        {"draws": [*GOOD, SILENT]},
        ((WARNING, "without asking the model, such as train instance 7"),),
    ),
    (checks.check_rewards, {"odd": []}, ()),
    (
        checks.check_rewards,
        {"odd": [scored(reward) for reward in (0.0, 0.0, 1.0, 0.0)]},
        ((NOTE, "Canned replies earned 0 to 1, 0.25 on average (standard deviation 0.43)."),),
    ),
    (checks.check_rewards, {"odd": [scored(-500.0)]}, ((WARNING, ""),)),
    (
        checks.check_rewards,
        {"odd": [ONCE], "repeated": [(ONCE, SWAPPED)]},
        (
            (NOTE, "Canned replies earned 0 to 1, 0.5 on"),
            (WARNING, "earns 1 (first), 0 (second), then 0 (first), 1 (second)"),
        ),
    ),
    (
        checks.check_rewards,
        {"odd": [*WRONG, outcome(at=4, invalid="no number"), outcome(at=3, invalid="no number")]},
        (
            (NOTE, ""),
            (
                WARNING,
                "It pays to be unreadable: at train instance 3 the empty reply is invalid and earns 0, the answer '0'"
                " is not and earns -0.1. Give Invalid a reward= below all.",
            ),
        ),
    ),
    (checks.check_rewards, {"odd": [*WRONG, outcome(at=3, invalid="no number")], "ranked": True}, ((NOTE, ""),)),
    (
        checks.check_rewards,
        {"odd": [*WRONG, outcome(reward=-0.1, at=3, invalid="x"), outcome(reward=0.2, at=4, invalid="x")]},
        ((NOTE, ""),),
    ),
    (
        checks.check_latency,
        timed(0.075, 2.0, [0.0004, 0.0004, 0.02]),
        (
            (NOTE, "Its process takes 75 ms to start and 2.0 s to its first prompt."),
            (NOTE, "A turn takes 0.4 ms of its own time (median of 3), 20 ms at worst."),
        ),
    ),
    (checks.check_latency, timed(11.0, 0.2, [0.001] * 9), ((WARNING, ""), (NOTE, ""))),
    (checks.check_latency, timed(0.1, 0.2, [0.001] * 9 + [6.0]), ((NOTE, ""), (WARNING, ""))),
    (checks.check_latency, timed(0.1, 0.2, [1.5] * 9), ((NOTE, ""), (WARNING, ""))),
    (checks.check_latency, timed(0.1, 0.2, []), ((NOTE, ""),)),
    (
        checks.check_baseline,
        {"constant": [*COIN, *same(EMPTY, 0.0, 64)]},
        (
            (
                ERROR,
                "The answer '0' scores 0.94 on average over 64 instances: rewards can be had without reading the"
                " prompt.",
            ),
        ),
    ),
    (
        checks.check_baseline,
        {"constant": [one for reply in CONSTANTS for one in same(reply, float(reply != EMPTY), 32)]},
        ((ERROR, f"{len(CONSTANTS) - 2} of {len(CONSTANTS) - 1} other constant answers do as well."),),
    ),
    *(
        (checks.check_baseline, {"constant": same(ZERO, reward, number)}, ((level, ""),))
        for reward, number, level in (
            *((0.89, 64, WARNING), (0.5, 64, WARNING), (0.49, 64, NOTE), (1.0, 15, NOTE), (5.0, 64, WARNING)),
        )
    ),
    (
        checks.check_baseline,
        {"constant": NOTHING},
        ((NOTE, f"No constant answer earns anything: {len(CONSTANTS)} were tried."),),
    ),
    (
        checks.check_baseline,
        {"constant": [*NOTHING, scored(1.0, EMPTY, 16)]},
        ((NOTE, "The empty reply scores 0.06"),),
    ),
    (
        checks.check_baseline,
        {"constant": COIN, "ranked": True},
        ((WARNING, "In training the group's ranking counts instead."),),
    ),
    (  # if agents play against each other, one of them always wins
        checks.check_baseline,
        {"constant": [replace(one, agents=frozenset(("first", "second"))) for one in same(ZERO, 1.0, 20)]},
        (),
    ),
    (
        checks.check_leaks,
        {
            "draws": [
                draw for split in SPLITS for draw in prompts(split, [f"{NUMBERS.randrange(60)}" for _ in range(64)])
            ]
        },
        ((WARNING, "the space of prompts is too small. Training skips them"),),
    ),
    (
        checks.check_leaks,
        {
            "draws": [
                *prompts("train", [f"t{i}" for i in range(20)]),
                *prompts("eval", [*(f"e{i}" for i in range(18)), "t7", "t3"]),
            ]
        },
        ((NOTE, "2 of 20 train prompts are held-out ones, too; training skips them."),),
    ),
    *(
        (
            checks.check_leaks,
            {"draws": [draw for split in SPLITS for draw in prompts(split, [f"row {i % number}" for i in range(40)])]},
            ((level, sentence),),
        )
        for number, level, sentence in ((5, WARNING, "40 of 40 train prompts are held-out ones"), (20, ERROR, ""))
    ),
    (
        checks.check_leaks,
        {"draws": [draw for split in SPLITS for draw in prompts(split, [f"{split} {i % 5}" for i in range(40)])]},
        ((NOTE, ""),),
    ),
    (checks.check_leaks, {"draws": [draw for split in SPLITS for draw in prompts(split, ["go"] * 9)]}, ()),
    (checks.check_junk, {"odd": [*paid(GOLD, *JUNK[:3]), *paid(None, *JUNK[3:])]}, ((NOTE, ""),)),
    (
        checks.check_junk,
        {"odd": [Played(reply, 0, EpisodeOutcome("error", failure=GOLD)) for reply in JUNK]},
        ((ERROR, f"Given each of the {len(JUNK)} replies that were tried, it fails: env.py:4: KeyError: 'gold'."),),
    ),
]


@pytest.mark.parametrize(("check", "seen", "expected"), FOUND)
def test_what_a_check_finds(
    check: Callable[[Observed], Iterator[Finding]], seen: dict[str, Any], expected: Expected
) -> None:
    findings = judged(check, **seen)
    assert [finding.level for finding in findings] == [level for level, _ in expected], findings
    for finding, (_, sentence) in zip(findings, expected, strict=True):
        assert sentence in finding.message


async def test_prompts_of_megabytes_are_not_all_kept() -> None:
    async def play(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        await answer(Ask("agent", (Message("user", f"{spec.index}" + "x" * (1 << 22)),)))
        return EpisodeOutcome("ok", {"agent": 1.0})

    subject = cast(Subject, SimpleNamespace(play=play, config={}, timeout=60.0))
    made = await draws(subject, [("train", index) for index in range(64)], Pace(60), 1.0)
    assert len(made) == 4


@given(st.integers(-40, 40), st.integers(48, 80))
def test_one_sequence_entered_twice_is_found_at_any_distance(shift: int, size: int) -> None:
    sequence = [f"task {random.Random(seed).random()}" for seed in range(200)]
    train = prompts("train", sequence[50 : 50 + size])
    held_out = prompts("eval", sequence[50 + shift : 50 + shift + size])
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert finding.level == "error"
    moved = f", moved by {abs(shift)}:" if shift else ":"
    assert finding.message.startswith(f"The eval split is the train split{moved} train instance {max(0, shift)}")


@pytest.mark.parametrize("begin", [100, 1024, 1_000_000, 1 << 20])
def test_a_split_from_a_round_number_is_found_from_afar(begin: int) -> None:
    train, held_out = (
        prompts(split, [f"{start + i}" for i in range(32)]) for split, start in zip(SPLITS, (0, begin), strict=True)
    )
    distant = [asking(f"{index}", index=index) for _, index in checks.far()]
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out], distant=distant))
    assert finding.level == "error" and f"moved by {begin:,}" in finding.message


@given(st.integers(0, 10**6))
def test_independent_draws_from_a_large_space_are_fine(seed: int) -> None:
    rng = random.Random(seed)
    train, held_out = (prompts(split, [f"{rng.randrange(10**12)}" for _ in range(64)]) for split in SPLITS)
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert finding == Finding("leaks", "note", "None of 64 train prompts is one of 64 held-out ones.")
