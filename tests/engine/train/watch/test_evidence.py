"""Which rollouts are shown."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.spec.task import FINDINGS
from marlaas.engine.store.versions import Said
from marlaas.engine.train.watch import MOST, chosen


def said(*rows: tuple[int, float | None, str, bool]) -> list[Said]:
    """Rollouts with their group, reward, reply and whether they were cut; ids count from 1."""
    return [Said(n, group, n, reward, text, cut) for n, (group, reward, text, cut) in enumerate(rows, 1)]


ROWS = said(
    (0, 0.5, "same", False),
    (0, 0.0, "same", False),
    (1, 0.9, "other", False),
    (1, 0.1, "a long one", True),
    (2, 1.0, "same", False),
    (2, None, "the longest of all", False),
)


def test_the_commonest_reply_in_different_groups() -> None:
    assert chosen("one_reply", ROWS) == chosen("entropy_collapse", ROWS) == (1, 5, 2)


def test_the_longest_and_first_what_was_cut() -> None:
    assert chosen("exploding_length", ROWS) == (4, 6, 1)


def test_the_lowest_rewards() -> None:
    assert chosen("falling_reward", ROWS) == (2, 4, 5)


def test_held_out_prompts_that_fell_most() -> None:
    before = said((0, 0.5, "", False), (1, 1.0, "", False), (2, 1.0, "", False))
    now = said((0, 0.4, "", False), (1, 0.0, "", False), (2, 0.3, "", False), (3, 0.0, "", False))
    assert chosen("reward_hacking", now, before) == (2, 3, 1)


@given(st.sampled_from(FINDINGS), st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(-2, 2)), max_size=12))
def test_at_most_three_and_none_twice(code: str, rows: list[tuple[int, float | None]]) -> None:
    rollouts = said(*((group, reward, str(group), False) for group, reward in rows))
    found = chosen(code, rollouts)
    assert len(found) <= MOST and len(set(found)) == len(found)
    assert set(found) <= {one.id for one in rollouts}
