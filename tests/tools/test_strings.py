"""The list of all texts that people read is up to date, and they are in plain words."""

from __future__ import annotations

import re

import pytest

from tools.strings import LIST, listed, texts

SOURCE = '''
"""A docstring of the module."""
import re
NAMES = ("one", "two words", "TITLE")
"""Of an attribute."""
CSS = "Screen { color: red; }"
PATTERN = re.compile("two words|three")

def say(count: int, db) -> str:
    """Of a function."""
    db.execute("SELECT name FROM tasks")
    sql = "UPDATE tasks SET name = 1"
    row["a key of two words"]
    words = f"There are {count} tasks{' of one tenant' if count == 1 else ''}."
    return words + f"{count}"
'''


def test_texts_for_people_are_found_and_others_left_out() -> None:
    assert list(texts(SOURCE)) == ["two words", "TITLE", "There are {…} tasks{…}.", "of one tenant"]


@pytest.fixture(scope="module")
def now() -> list[str]:
    """The lines of the list, as the program is now."""
    return listed().splitlines()


def test_the_list_is_up_to_date(now: list[str]) -> None:
    there = LIST.read_text(encoding="utf-8").splitlines()
    gone, new = [text for text in there if text not in now], [text for text in now if text not in there]
    assert there == now, f"`python -m tools.strings` writes the list anew. Gone: {gone[:9]}; new: {new[:9]}"


RIDDLES = {
    r"\bby a person\b": "paused by you",
    r"\bThere is nothing to undo\b": "Nothing to undo.",
    r"\bcannot be had\b": "are missing, or cannot be read",
    r"\boptimizer (kept|gone)\b": "resumable: yes",
    r"\btries again within\b|\bThe task is tried again\b": "retrying in 60 s",
    r"\bit is not said\b": "say …",
    r"\b1 in 20\b": "p95",
    r"\bhas haste\b|\bin haste\b": "urgent",
}
"""What a reader must puzzle over, and what is said instead."""


@pytest.mark.parametrize("riddle", RIDDLES)
def test_no_text_is_a_riddle(now: list[str], riddle: str) -> None:
    found = [text.strip() for text in now if re.search(riddle, text, re.IGNORECASE)]
    assert not found, f"say rather: {RIDDLES[riddle]}"
