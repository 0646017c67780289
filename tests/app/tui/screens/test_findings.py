"""What goes wrong in learning, on the screens: a mark in the queue, a line in the task view, and its rollouts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from marlaas.app.rollouts.answers import Block
from marlaas.app.rollouts.exporting import joined
from marlaas.app.text.format import excerpt
from marlaas.app.tui.screens.dialogs import CHARACTERS, LINES, Findings, beginning
from marlaas.engine.home.paths import Home

from ....seldom import often
from ...driving import SIZES, driving
from ...filling import HOSTILE, Filling
from ...filling_rollouts import fill_rollouts


def found(filling: Filling, rollouts: list[int], holds: int = 1, code: str = "large_steps") -> None:
    filling.insert(
        "findings",
        policy=1,
        code=code,
        step=8,
        evidence=json.dumps({"moved": 1.5}),
        rollouts=json.dumps(rollouts),
        holds=holds,
        pending=0,
        created=1.0,
    )


@pytest.mark.parametrize("size", SIZES)
async def test_a_mark_a_line_and_the_rollouts(filling: Filling, home: Home, size: tuple[int, int]) -> None:
    fill_rollouts(filling, 10)
    found(filling, [3, 1, 99999])
    filling.engine()
    async with driving(home, size) as driver:
        assert "● running !" in driver.text()
        await driver.press("enter")
        assert "▼ Steps too large at step 8" in driver.text() and "f: evidence" in driver.text()
        assert driver.text().splitlines()[-1].startswith(" f findings  ⏎ about")
        await driver.press("f")
        await driver.settle()
        assert isinstance(driver.app.screen, Findings)
        text = driver.text()
        assert "what goes wrong in task 1" in text and "! Steps too large at step 8" in text and "1.5 nats" in text
        assert "What to do: Begin a new task" in text and "rollout 3" in text
        for _ in range(60):
            await driver.press("j")
        await driver.settle()
        assert "It is not stored any more." in driver.text()
        await driver.press("escape")
        assert not isinstance(driver.app.screen, Findings)


async def test_what_is_over_is_no_mark(filling: Filling, home: Home) -> None:
    fill_rollouts(filling, 10)
    found(filling, [], holds=0)
    async with driving(home, (120, 40)) as driver:
        assert "running !" not in driver.text()
        await driver.press("enter", "f")
        assert "Steps too large at step 8, over by now" in driver.text()


async def test_without_a_finding_the_key_says_so(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    async with driving(home, (120, 40)) as driver:
        await driver.press("enter", "f")
        assert "Nothing was found to go wrong" in driver.notices()


async def test_hostile_replies_are_text(filling: Filling, home: Home) -> None:
    filling.task(made=3, turns=(("user", HOSTILE), ("assistant", HOSTILE)))
    found(filling, [1], code=HOSTILE.replace("\ud800", ""))
    async with driving(home, (120, 40)) as driver:
        await driver.press("enter", "f")
        await driver.settle()
        assert isinstance(driver.app.screen, Findings) and "\x1b" not in driver.text()


ADVICE = "Begin a new task with a third of the `learning_rate` or less, or with more groups per step"


@pytest.mark.parametrize("size", often([(80, 24)], [(80, 24), (120, 36), (200, 50)]))
async def test_the_advice_is_whole_in_both_views(filling: Filling, home: Home, size: tuple[int, int]) -> None:
    fill_rollouts(filling, 10)
    found(filling, [3])
    filling.engine()
    async with driving(home, size) as driver:
        assert ADVICE in " ".join(driver.text().split()) and "⏎ f: evidence" in driver.text()
        await driver.press("enter")
        assert ADVICE in " ".join(driver.text().split()) and " f: evidence" in driver.text()


async def test_without_a_finding_the_keys_are_as_ever(filling: Filling, home: Home) -> None:
    fill_rollouts(filling, 10)
    filling.engine()
    async with driving(home, (120, 36)) as driver:
        await driver.press("enter")
        assert "findings" not in driver.text() and "evidence" not in driver.text()


@given(
    st.lists(st.tuples(st.text("ab\n", max_size=90), st.sampled_from(["", "bold"])), min_size=1, max_size=40),
)
def test_what_is_shown_of_a_rollout_keeps_its_colours(parts: list[tuple[str, str]]) -> None:
    blocks = [Block(text, style) for text, style in parts]
    shown = beginning(blocks)
    assert shown.plain == excerpt(joined(blocks), CHARACTERS, LINES)
    bold = "".join(shown.plain[span.start : span.end] for span in shown.spans if span.style == "bold")
    assert shown.plain != joined(blocks) or bold == "".join(text for text, style in parts if style)
