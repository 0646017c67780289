"""The names of columns in the rule above a list."""

from __future__ import annotations

from marlaas.app.tui.screens.rollouts import heading, step_heading


def test_a_word_stands_above_its_column() -> None:
    """Two cells further right than in a row's text, which has the cursor before it."""
    title = heading((3, "step"), (8, "mean"), (20, "groups"))
    assert title == "──── step mean ────── groups "
    assert [title.index(word) - 2 for word in ("step", "mean", "groups")] == [3, 8, 20]


def test_a_column_whose_place_is_taken_is_left_out() -> None:
    assert heading((-2, "held-out at step 10: 8 groups"), (20, "rewards"), (30, ""), (34, "replies")) == (
        "held-out at step 10: 8 groups ───── replies "
    )


def test_the_steps_say_what_their_numbers_are() -> None:
    title = step_heading(70, " of player", True)
    assert " step mean reward of player · ◆ held-out ─" in title and title.endswith(" groups  failed ")
    assert "◆" not in step_heading(70, "", False)
