"""Whether the two splits meet: by chance, because the space is small, or because they are one sequence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import Draw

from .scripted import asking, judged, only


def split_of(name: str, prompts: list[str]) -> list[Draw]:
    return [asking(prompt, "eval" if name == "eval" else "train", index) for index, prompt in enumerate(prompts)]


@given(st.integers(-40, 40), st.integers(48, 80))
def test_one_sequence_entered_twice_is_found_at_any_distance(shift: int, size: int) -> None:
    sequence = [f"task {random.Random(seed).random()}" for seed in range(200)]
    train = split_of("train", sequence[50 : 50 + size])
    held_out = split_of("eval", sequence[50 + shift : 50 + shift + size])
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert finding.level == "error"
    moved = f", moved by {abs(shift)}:" if shift else ":"
    assert finding.message.startswith(f"The eval split is the train split{moved} train instance {max(0, shift)}")


@pytest.mark.parametrize("begin", [100, 1024, 1_000_000, 1 << 20])
def test_a_split_from_a_round_number_is_found_from_afar(begin: int) -> None:
    train, held_out = (
        split_of(name, [f"{start + i}" for i in range(32)]) for name, start in (("train", 0), ("eval", begin))
    )
    distant = [asking(f"{index}", index=index) for _, index in checks.far()]
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out], distant=distant))
    assert finding.level == "error" and f"moved by {begin:,}" in finding.message


@given(st.integers(0, 10**6))
def test_independent_draws_from_a_large_space_are_fine(seed: int) -> None:
    rng = random.Random(seed)
    train, held_out = (split_of(name, [f"{rng.randrange(10**12)}" for _ in range(64)]) for name in ("train", "eval"))
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert finding == Finding("leaks", "note", "None of 64 train prompts is one of 64 held-out ones.")


def test_a_small_space_is_a_warning() -> None:
    rng = random.Random(1)
    train, held_out = (split_of(name, [f"{rng.randrange(60)}" for _ in range(64)]) for name in ("train", "eval"))
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert finding.level == "warning" and "the space of prompts is too small. Training skips them" in finding.message


def test_a_few_that_meet_are_skipped() -> None:
    train = split_of("train", [f"t{i}" for i in range(20)])
    held_out = split_of("eval", [*(f"e{i}" for i in range(18)), "t7", "t3"])
    finding = only(judged(checks.check_leaks, draws=[*train, *held_out]))
    assert (finding.level, finding.message) == (
        "note",
        "2 of 20 train prompts are held-out ones, too; training skips them.",
    )


def test_the_same_few_rows_in_both_splits() -> None:
    rows = [f"row {i}" for i in range(5)]
    finding = only(judged(checks.check_leaks, draws=[*split_of("train", rows * 8), *split_of("eval", rows * 8)]))
    assert finding.level == "warning" and finding.message.startswith("40 of 40 train prompts are held-out ones")
    many = [f"row {i}" for i in range(20)]
    assert (
        only(judged(checks.check_leaks, draws=[*split_of("train", many * 2), *split_of("eval", many * 2)])).level
        == "error"
    )


def test_few_rows_of_their_own_are_fine() -> None:
    train, held_out = (split_of(name, [f"{name} {i % 5}" for i in range(40)]) for name in ("train", "eval"))
    assert only(judged(checks.check_leaks, draws=[*train, *held_out])).level == "note"


def test_a_game_that_always_opens_alike_tells_nothing() -> None:
    assert judged(checks.check_leaks, draws=[*split_of("train", ["go"] * 9), *split_of("eval", ["go"] * 9)]) == []
