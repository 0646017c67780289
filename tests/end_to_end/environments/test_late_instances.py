"""Environments that fail only where the number of the instance is high: what is rare costs a draw, the rest is said."""

from __future__ import annotations

import re

import pytest

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

LATE = '''"""Sums with rows that are broken."""

from marlaas.plugins import Episode, env


@env
async def {name}(ep: Episode) -> bool:
    a, b = ep.rng.randint(0, 10**9), ep.rng.randint(0, 10**9)  # no prompt is held out, so no group draws twice
    if {fails}:
        raise LookupError(f"row {{ep.index}} is broken")
    reply = await ep.ask(f"{{a}}+{{b}}=")
    return reply.text == str(a + b)
'''


def serve(lab: Lab, name: str, fails: str) -> None:
    (lab.home.plugins / f"{name}.py").write_text(LATE.format(name=name, fails=fails))


def test_a_row_in_fifty_costs_a_draw(lab: Lab) -> None:
    serve(lab, "one_in_fifty", "ep.index % 50 == 49")
    task = lab.submit("rare", "one_in_fifty", steps=14, train={"groups_per_step": 4, "patience": 100})
    row = lab.until(task, 14)
    assert (row.step, row.reason) == (14, ""), "group 49 was drawn anew"


def test_all_rows_above_forty_are_named(lab: Lab) -> None:
    serve(lab, "above_forty", "ep.split == 'train' and ep.index > 40")
    # Four open groups lose five draws each before the environment itself rests, which takes 24 failed instances.
    train = {"groups_per_step": 4, "max_staleness": 0, "patience": 100}
    task = lab.submit("late", "above_forty", steps=40, train=train)
    row = lab.until(task, 40)
    assert row.state == "paused" and row.step <= 10
    said = re.search(r"LookupError: row (\d+) is broken \(above_forty\.py, line 10\)\. `marlaas (.*)`", row.reason)
    assert said and said[2] == f"env play above_forty/above_forty --index {said[1]}", row.reason
    with pytest.raises(AssertionError, match=f"row {said[1]} is broken"):
        lab.marlaas(*said[2].split())
