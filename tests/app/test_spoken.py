"""Our own lines for ears: no sign, no column, no value without its name."""

from __future__ import annotations

import re

import pytest

from marlaas.app import spoken
from marlaas.app.text.tasks import GLYPHS, state_word
from marlaas.app.text.terms import TERMS, paragraphs


@pytest.mark.parametrize(
    ("shown", "heard"),
    [
        ("  held-out     0.41 ± 0.06 at step 0", "held-out: 0.41 plus or minus 0.06 at step 0"),
        ("  reward       0.70  ▄▅▆▄▇█", "reward: 0.70"),
        ("✓ 102 ×7, ✗ 112", "right: 102, 7 times, wrong: 112"),
        ("2 cores · CPU · not measured", "2 cores, CPU, not measured"),
        ("Starting it …", "Starting it ..."),
        ("held-out 0.44 → 1.00", "held-out 0.44 to 1.00"),
        ("state   ● running !", "state: running, learning goes wrong"),
        ("log π²", "log pi squared"),
        ("the file .venv/naïve.py, 1 , 2", "the file .venv/naïve.py, 1, 2"),
        ("a  b\n\n  c ", "a: b\n\nc"),
        ("6 ÷ 2", "6 division sign 2"),
        ("", ""),
    ],
)
def test_signs_and_columns_become_words(shown: str, heard: str) -> None:
    assert spoken.spoken(shown) == heard == spoken.spoken(heard)


@pytest.mark.parametrize("state", GLYPHS)
def test_states_are_their_words(state: str) -> None:
    assert spoken.spoken(state_word(state)) == state


def test_every_value_of_a_row_has_its_heading() -> None:
    headers = ("ID", "TENANT", "STATE", "STEP", "REWARD", "MEMBERS", "REASON")
    row = spoken.row(headers, ("3", "bio", "‖ paused", "12/60", "-", "██▁█", "  by you"))
    assert row == "ID 3: tenant bio; state paused; step 12 of 60; reason by you"
    assert spoken.row(("TASK", "1", "2"), ("state", "✓ done", "")) == "task state: 1: done"
    assert spoken.row(("A",), ("",)) == "" and spoken.row(("KL", "P95"), ("0", "")) == "KL 0"


def test_all_terms_can_be_heard() -> None:
    said = [spoken.fact(label or "means", text) for term in TERMS for label, text in paragraphs(term)]
    assert [text for text in said if re.search(r"[^\w -~]", text)] == []
