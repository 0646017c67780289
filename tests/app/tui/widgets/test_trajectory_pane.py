"""A conversation that the template rewrote is read as one text, with its group's replies below it."""

from dataclasses import replace

from marlaas.app.text.format import cells
from marlaas.app.tui.widgets.conversation import conversations, group_lines, trajectory_text
from marlaas.engine.store.rows import TrajectoryRow, Turn


def row(id: int, part: int = 0, member: int = 0) -> TrajectoryRow:
    turns = (Turn("user", f"question {part}"), Turn("thinking", "hm"), Turn("assistant", f"answer {part}"))
    return TrajectoryRow(
        id, 1, "train", 5, member, "agent", "ok", 1.0, 0.5, None, 0, "e1", 19 + part, turns, {}, {}, "", part
    )


def test_the_parts_of_a_conversation_are_one_text() -> None:
    rows = [row(6, member=2), row(5, 2, 1), row(4, 1, 1), row(3, 0, 1), row(2, 0, 0)]
    read = conversations(rows)
    assert [(one.id, one.member, one.part) for one in read] == [(6, 2, 0), (5, 1, 2), (2, 0, 0)]
    assert read[0] == rows[0] and read[2] == rows[4]
    text = trajectory_text(read[1]).plain
    places = [text.index(f"{what} {part}") for part in range(3) for what in ("question", "answer")]
    assert places == sorted(places) and text.count("rewrote earlier turns") == 2
    assert "3 trajectories" in text and "21 tokens" in text and "trajectories" not in trajectory_text(read[0]).plain


def test_a_beginning_that_is_not_at_hand_is_left_out() -> None:
    (one,) = conversations([row(5, 2), row(4, 1)])
    assert [turn.text for turn in one.turns if turn.role == "user"] == ["question 1", "question 2"]
    assert conversations([]) == []


def test_below_it_stands_what_its_group_replied() -> None:
    short = replace(row(1), turns=(Turn("user", "17 + 25"), Turn("assistant", "42\n[b]\x1b[31m")))
    long = replace(row(2, member=1), reward=0.0, turns=(Turn("assistant", "no idea " * 50),))
    failed = replace(row(3, member=2), reward=None, status="error", turns=(Turn("user", "17 + 25"),))
    other = replace(row(4, member=2), agent="judge", reward=0.25)
    again = replace(short, id=5, member=4)
    said = [each.plain for each in group_lines([again, failed, long, short], long, 40)]
    assert said[:2] == ["", "last replies of its group"]
    assert said[2:4] == ["  ✓ ×2  42 [b]", "  ! ×1  error"], "distinct ones, and nothing of them is obeyed"
    assert said[4].startswith("▸ ✗ ×1  no idea") and said[4].endswith("…") and cells(said[4]) == 40 and len(said) == 5
    named = [each.plain for each in group_lines([other, short], short, 40)]
    assert named[2:] == ["  0.25 ×1  judge: answer 0", "▸ ✓    ×1  agent: 42 [b]"]
    assert group_lines([short], short, 40) == [], "nothing to compare it with"
    assert all(cells(each.plain) <= 9 for each in group_lines([failed, long, short], long, 1)[2:])
