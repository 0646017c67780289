"""What a real engine recorded, with a real model's odd replies, gives the same rewards when it is replayed."""

from __future__ import annotations

import json

import pytest

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

GRADED = """
from marlaas.plugins import Score, env

@env(data=lambda split: [{{"ask": f"{{split}} {{number}}"}} for number in range(20)])
async def graded(ep, task):
    for turn in range(3):
        await ep.ask(f"{{task['ask']}} {{turn}}")

@graded.score
def score(task, transcript):
    said = [message.content for message in transcript.replies]
    return Score({worth} * len(set("".join(said))), replies=len(said))

@graded.group
def rank(episodes):
    return [one.reward for one in episodes]
"""


def replayed(lab: Lab, task: int, *words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(lab.marlaas("env", "replay", str(task), "--json", *words))
    return found


def test_the_past_comes_out_as_it_was_recorded(lab: Lab) -> None:
    path = lab.home.plugins / "graded.py"
    path.write_text(GRADED.format(worth=1))
    tasks = [
        lab.submit("old sums", "calculator", steps=2, sampling={"max_tokens": 48}),
        lab.submit("old guesses", "guess", steps=2),
        lab.submit("old grades", "graded", steps=2, sampling={"max_episode_tokens": 20}),
    ]
    lab.marlaas("wait", *map(str, tasks))
    for task in tasks:
        for split in ("train", "eval"):
            found = replayed(lab, task, "--split", split)
            assert found["rewards"] == found["unchanged"] == 16, found

    path.write_text(GRADED.format(worth=2))
    found = replayed(lab, tasks[-1])
    assert found["changed"] and found["changed"] == 16 - int(str(found["unchanged"]))
    assert found["mean_after"] == pytest.approx(2 * float(str(found["mean_before"])))
