"""Rows that lie sorted by topic are learned as shuffled ones are: real runs, five seeds of each."""

from __future__ import annotations

import json
import random
import statistics
import string
import time
from pathlib import Path

import pytest

from marlaas.plugins.data import row_at

from ..end_to_end.conftest import Lab

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]

PLUGIN = """
from marlaas.plugins import env


@env(data=lambda split: [{"topic": 0, "ask": "1+1=", "answer": "2"}])
async def skills(ep, task):
    reply = await ep.ask(task["ask"], max_tokens=8)
    ep.log(topic=task["topic"])
    return reply.text == task["answer"]
"""
TOPICS = 4
ROWS = 640
"""Of four topics; a tenth of them is for evaluation, which is all that an evaluation plays."""
SEEDS = range(5)


def question(topic: int, chance: random.Random) -> tuple[str, str]:
    """A question of a topic, and its answer: what the shipped base can do now and then."""
    word = "".join(chance.choices(string.ascii_lowercase, k=4))
    digits = "".join(chance.choices(string.digits, k=4))
    a, b = sorted(chance.sample(range(10, 100), 2))
    return (
        (f"reverse {word}", word[::-1]),
        (f"sort {digits}", "".join(sorted(digits))),
        (f"larger of {a} and {b}", str(b)),
        (f"{b}-{a}=", str(b - a)),
    )[topic]


def table() -> list[dict[str, object]]:
    """Different questions, sorted by topic."""
    chance, found = random.Random(0), dict[str, dict[str, object]]()
    for topic in range(TOPICS):
        while len(found) < ROWS * (topic + 1) // TOPICS:
            ask, answer = question(topic, chance)
            found[ask] = {"topic": topic, "ask": ask, "answer": answer}
    return list(found.values())


def test_sorted_rows_are_learned_as_shuffled_ones(lab: Lab, tmp_path: Path) -> None:
    """The files differ in their order alone, so runs differ as seeds do: the means of five runs may be apart by three
    standard errors of their difference, from the seeds' own spread, and by one row of 64 more."""
    lab.home.plugins.joinpath("skills.py").write_text(PLUGIN)
    rows = table()
    files = {"sorted": rows, "shuffled": random.Random(1).sample(rows, len(rows))}
    tasks: dict[int, str] = {}
    for name, lines in files.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))
        for seed in SEEDS:
            train = {"groups_per_step": 8, "group_size": 8, "seed": seed}
            data = {"path": str(path)}
            measure = {"prompts": ROWS // 10, "every": 0}
            number = lab.submit(f"{name} {seed}", "skills", steps=24, train=train, data=data, eval=measure)
            tasks[number] = name
    scores: dict[str, list[tuple[float, float]]] = {name: [] for name in files}
    for task, name in tasks.items():
        while (row := lab.row(task)).state not in ("done", "failed", "paused"):
            time.sleep(0.5)
        assert row.state == "done", row.reason
        first, last = (one["score"] for one in sorted(lab.show(task)["eval"], key=lambda one: one["step"]))
        scores[name].append((first, last))
    print(scores)
    gains = {name: [last - first for first, last in found] for name, found in scores.items()}
    error = sum(statistics.variance(found) / len(found) for found in gains.values()) ** 0.5
    means = {name: statistics.mean(found) for name, found in gains.items()}
    assert min(means.values()) > 0.05, scores
    assert abs(means["sorted"] - means["shuffled"]) < 3 * error + 1 / 64, scores


def test_the_first_steps_meet_all_topics() -> None:
    """What such runs draw: by file order the first 18 steps had one topic."""
    for seed in SEEDS:
        topics = {row_at("train", seed, number, ROWS * 9 // 10) * TOPICS // (ROWS * 9 // 10) for number in range(24)}
        assert topics == {0, 1, 2, 3}
