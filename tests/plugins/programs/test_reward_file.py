"""What a program may write about its reward, and that nothing else is one."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins import Score
from marlaas.plugins.programs.run import read_text, reward_of
from marlaas.plugins.rewards import LARGEST, rewards_of

NUMBERS = st.floats(-LARGEST, LARGEST)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "reward"), [("0.5", 0.5), (" 1\n", 1.0), ("true", 1.0), ("-.5", -0.5), ("+2", 2.0), ("1e3", 1000.0)]
)
def test_numbers(text: str, reward: float) -> None:
    assert reward_of(text, "reward.txt") == reward


def test_parts_and_agents() -> None:
    score = reward_of('{"reward": 0.5, "spelling": 1, "value": 2}', "reward.json")
    assert isinstance(score, Score) and score.value == 0.5 and score.parts == {"spelling": 1.0, "value": 2.0}
    assert reward_of('{"reward": {"first": 1, "second": -1}}', "reward.json") == {"first": 1.0, "second": -1.0}


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", ValueError, "r is empty: write a number"),
        ("good", ValueError, "r must hold a number or JSON with 'reward', not 'good'"),
        ("nan", ValueError, "what r holds must be finite, not nan"),
        ("NaN", ValueError, "must be finite"),
        ("1e400", ValueError, "must be finite"),
        ("1" * 5000, ValueError, "must be finite"),
        ("2e9", ValueError, "must lie between"),
        ("null", TypeError, "what r holds must be a number, not None"),
        ('"1"', TypeError, "must be a number, not str"),
        ("[1]", TypeError, "must be a number, not list"),
        ("{}", ValueError, "r has no 'reward'; it has nothing"),
        ('{"score": 1}', ValueError, "r has no 'reward'; it has score"),
        ('{"reward": "1"}', TypeError, "'reward' in r must be a number"),
        ('{"reward": 1, "note": "well done"}', TypeError, "'note' in r must be a number, not str 'well done'"),
        ('{"reward": {"first": null}}', TypeError, "the reward of 'first' in r must be a number"),
        ('{"reward": {"first": 1}, "x": 1}', ValueError, "so 'x' cannot stand beside 'first'"),
        ("[" * 100_000, ValueError, "must hold a number or JSON"),
    ],
)
def test_what_is_no_reward(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reward_of(text, "r")


@given(NUMBERS, st.dictionaries(st.text(), NUMBERS))
def test_what_is_written_is_read(value: float, parts: dict[str, float]) -> None:
    parts.pop("reward", None)
    assert reward_of(json.dumps(value), "r") == value
    read = rewards_of(reward_of(json.dumps({"reward": value} | parts), "r"), (), {})
    assert read.by_agent == {"agent": value} and read.parts == parts


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_a_reward_or_an_error_in_words(text: str) -> None:
    try:
        rewards = rewards_of(reward_of(text, "r"), ("agent",), {})
    except (TypeError, ValueError) as error:
        assert str(error)
    else:
        assert all(math.isfinite(number) for number in rewards.by_agent.values())


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("1")
    assert (read_text(str(tmp_path), "r", 10), read_text(str(tmp_path), "none", 10)) == ("1", None)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "long").write_text("1" * 11)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert read_text(str(tmp_path), "bytes", 10) == "\ufffd"
    for name, says in [("pipe", "no plain file"), ("link", "cannot be read"), ("long", "than 10"), ("folder", "plain")]:
        with pytest.raises(ValueError, match=says):
            read_text(str(tmp_path), name, 10)
