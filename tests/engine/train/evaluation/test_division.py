"""Which prompts are measured and held out: small spaces are divided, repeated rows count once."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from marlaas.engine.train.held_out import FEWEST, LARGEST_LOSS, divide


def prompts(*numbers: int) -> list[bytes]:
    return [bytes([number]) for number in numbers]


def test_a_large_space_is_measured_and_held_out_whole() -> None:
    found = divide(prompts(*range(64)), prompts(*range(100, 132)), rows=False)
    assert found.instances == tuple(range(64)) and found.hashes == set(prompts(*range(64))) and not found.remark


def test_ten_rows_are_ten_prompts() -> None:
    found = divide(prompts(*[index % 10 for index in range(64)]), prompts(*range(20, 52)), rows=True)
    assert found.instances == tuple(range(10)) and found.hashes == set(prompts(*range(10)))
    assert found.remark == "Only 10 of 64 held-out prompts differ: each is measured once."


def test_a_few_repeats_are_left_out_and_unsaid() -> None:
    found = divide(prompts(*range(62), 0, 1), prompts(*range(100, 132)), rows=False)
    assert found.instances == tuple(range(62)) and not found.remark


def test_of_a_space_of_ten_half_is_held_out() -> None:
    draw = random.Random(0)
    evaluated, trained = prompts(*draw.choices(range(10), k=64)), prompts(*draw.choices(range(10), k=32))
    found = divide(evaluated, trained, rows=False)
    assert {evaluated[index] for index in found.instances} == found.hashes
    assert len(found.instances) == len(found.hashes) and 4 <= len(found.hashes) <= 6
    assert f"{len(found.hashes)} of its 10 are measured, and kept out of training" in found.remark


def test_a_second_split_counts_what_the_first_has_left() -> None:
    """Of ten prompts five are taken; of the others as many are held out as training can do without."""
    taken = frozenset(prompts(*range(5)))
    found = divide(prompts(*range(10)), prompts(*[5, 6, 7, 8, 9] * 4), rows=False, name="test", taken=taken)
    assert len(found.instances) == len(found.hashes) == 2 and not found.hashes & taken
    assert "2 of its 5 are measured, and kept out of training, which has 3 others" in found.remark


def test_a_game_that_opens_alike_is_measured_on_all() -> None:
    found = divide(prompts(*[1] * 64), prompts(*[1] * 32), rows=False)
    assert found.instances == tuple(range(64)) and not found.hashes
    assert "open with the same prompt. Prompts do not tell one from another, so nothing is held out" in found.remark
    two = divide(prompts(*[1, 2] * 32), prompts(*[1, 2] * 16), rows=False)
    assert two.instances == tuple(range(64)) and "have only 2 different first prompts" in two.remark


def test_few_rows_are_told_apart() -> None:
    found = divide(prompts(*[1, 2] * 32), prompts(*range(10, 42)), rows=True)
    assert found.instances == (0, 1) and found.hashes == set(prompts(1, 2))


def test_one_row_for_everything_cannot_be_held_out() -> None:
    found = divide(prompts(*[1] * 8), prompts(*[1] * 32), rows=True)
    assert found.instances == (0,) and not found.hashes and "nothing can be held out" in found.remark


def test_what_has_no_prompt_is_measured_all_the_same() -> None:
    found = divide([None, *prompts(*range(9)), None], prompts(*range(50, 82)), rows=False)
    assert found.instances == tuple(range(11)) and len(found.hashes) == 9
    assert divide([None, None], [], rows=False).instances == (0, 1)


@given(
    st.lists(st.none() | st.integers(0, 30).map(lambda number: bytes([number])), min_size=1, max_size=40),
    st.lists(st.integers(0, 30).map(lambda number: bytes([number])), max_size=32),
    st.booleans(),
)
def test_training_keeps_its_share_and_each_prompt_counts_once(
    evaluated: list[bytes | None], trained: list[bytes], rows: bool
) -> None:
    found = divide(evaluated, trained, rows)
    lost = sum(prompt in found.hashes for prompt in trained)
    assert lost <= LARGEST_LOSS * len(trained) and found.instances
    measured = [prompt for index in found.instances if (prompt := evaluated[index]) is not None]
    if found.hashes:
        assert sorted(measured) == sorted(found.hashes), "what is measured is held out, each prompt once"
    elif rows or len({*filter(None, evaluated), *trained}) >= FEWEST:
        assert len(measured) == len(set(measured))
    assert found == divide(evaluated, trained[::-1], rows), "in whatever order training draws"
