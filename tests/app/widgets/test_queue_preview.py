"""The queue's lower part: how lines are shared, and a rollout in any room."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.queue_lines import lower_part
from marlaas.app.widgets.queue_table import rollout_lines
from marlaas.app.words.format import cells
from marlaas.engine.store.rows import TrajectoryRow, Turn

from ..filling import HOSTILE

TURNS = (Turn("user", "What is 17 + 25? " * 10), Turn("assistant", "It is forty-two. " * 10 + "So: 42"))


def rollout(*turns: Turn, reward: float | None = 1.0, failure: str = "") -> TrajectoryRow:
    return TrajectoryRow(1, 1, "train", 344, 2, "agent", "ok", reward, 0.5, 43, 42, "e1", 19, turns, {}, {}, failure)


def shown(row: TrajectoryRow, width: int, height: int) -> list[str]:
    return [line.plain for line in rollout_lines(row, width, height)]


@pytest.mark.parametrize("height", range(1, 80))
@pytest.mark.parametrize("wanted", [1, 5, 40, 500])
def test_the_lines_of_a_terminal_are_shared(height: int, wanted: int) -> None:
    room = lower_part(height, wanted)
    if room is None:
        assert height < 20
    else:
        assert room.table + room.below == height - 7 and room.below >= 6 and room.table >= 6
        assert room.table >= min(wanted, 6) and (room.table <= max(6, wanted))


def test_few_tasks_leave_their_lines_to_the_lower_part() -> None:
    few, many = lower_part(36, 5), lower_part(36, 100)
    assert few is not None and many is not None and few.below == 23 and many.table == 18


def test_a_rollout_is_shown_with_its_reward() -> None:
    lines = shown(rollout(Turn("user", "17 + 25 = ?"), Turn("assistant", "42")), 40, 6)
    assert lines == ["newest rollout, group 344    reward 1.00", "user: 17 + 25 = ?", "assistant: 42"]


def test_a_long_turn_loses_its_middle() -> None:
    lines = shown(rollout(*TURNS), 30, 10)
    assert len(lines) <= 10 and lines[-1].endswith("So: 42") and lines[1].startswith("user: What is 17 + 25?")
    assert sum(line.startswith("…") for line in lines) == 2


def test_what_failed_says_why() -> None:
    lines = shown(rollout(*TURNS, reward=None, failure="the sum was no number"), 50, 8)
    assert lines[0].endswith("no reward") and lines[1] == "! the sum was no number"


@given(
    st.lists(st.builds(Turn, st.sampled_from(["user", "assistant", HOSTILE]), st.text(max_size=300)), max_size=5),
    st.integers(0, 60),
    st.integers(0, 20),
)
def test_any_rollout_fits_any_room(turns: list[Turn], width: int, height: int) -> None:
    lines = shown(rollout(*turns, Turn("tool", HOSTILE), failure=HOSTILE), width, height)
    assert len(lines) <= height
    if width >= 24:  # below, the reward alone may be wider
        assert all(cells(line) <= width for line in lines) and "\x1b" not in "".join(lines)
