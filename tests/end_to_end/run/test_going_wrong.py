"""Real runs that are made to go wrong, each by one mistake that people make; the engine finds it and says so."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from marlaas.engine.store.rows import FindingRow

from ..conftest import Lab
from ..served import served

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

PLUGIN = '''
from marlaas.plugins import env


def question(ep):
    a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
    return f"{a}+{b}=", str(a + b)


def ones(text):
    """Pays for the reply "111", whatever was asked, and a part of it for what comes near."""
    return sum(letter == "1" for letter in text[:3]) / max(3, len(text))


@env
async def constant(ep):
    """Pays the same reply for every prompt."""
    asked, _ = question(ep)
    return ones((await ep.ask(asked)).text)


@env
async def lengthy(ep):
    """Pays for length."""
    asked, _ = question(ep)
    return min(1.0, len((await ep.ask(asked)).text) / 16)


@env
async def leaky(ep):
    """In training the grader can be cheated; on held-out prompts it is right."""
    asked, right = question(ep)
    text = (await ep.ask(asked)).text
    return ones(text) if ep.split == "train" else float(text == right)


@env
async def changing(ep):
    """First pays one reply, and then what nobody says any more who has learned that: tasks of a later chapter."""
    asked, right = question(ep)
    text = (await ep.ask(asked)).text
    return ones(text) if ep.split != "train" or ep.index < 26 * 8 else float(text == right)
'''
TRAIN = {"groups_per_step": 8, "group_size": 8}


@dataclass(frozen=True)
class Wrong:
    """A task that goes wrong."""

    environment: str
    finding: str
    steps: int = 40
    train: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


HASTY = Wrong("arithmetic", "large_steps", 10, {"learning_rate": 0.05, "kl": 1e-6})
QUICK = {"learning_rate": 2e-3}
"""A learning rate at which a wrong lesson is learned in twenty steps; the base still learns right ones at it."""
WARM, HOT = {"max_tokens": 8, "temperature": 1.5}, {"max_tokens": 16, "temperature": 2.0}
WRONG = {
    "one reply": Wrong("constant", "one_reply", 32, QUICK, {"sampling": WARM}),
    "length": Wrong("lengthy", "exploding_length", 36, QUICK, {"sampling": HOT}),
    "hacking": Wrong("leaky", "reward_hacking", 24, QUICK, {"sampling": WARM, "eval": {"every": 4, "prompts": 64}}),
    "collapse": Wrong("changing", "entropy_collapse", 40, QUICK, {"sampling": WARM}),
    "haste": Wrong("arithmetic", "falling_reward", 30, {"learning_rate": 0.02}),
}


def submitted(lab: Lab, name: str, wrong: Wrong) -> int:
    """Submit it with 64 episodes a step."""
    train = TRAIN | wrong.train
    return lab.submit(name, wrong.environment, steps=wrong.steps, train=train, **wrong.tables)


def found(lab: Lab, task: int) -> dict[str, FindingRow]:
    """What was found, by code, once the task has ended."""
    deadline = time.monotonic() + 1500
    while (row := lab.row(task)).state not in ("done", "failed", "paused") and time.monotonic() < deadline:
        time.sleep(0.2)  # the engine is another process: there is nothing to await
    return {one.code: one for one in row.findings}


def check(lab: Lab, task: int, code: str) -> None:
    """It is found, with figures, three rollouts that can be read, and advice."""
    said = found(lab, task)
    assert code in said, (lab.row(task), said)
    finding = said[code]
    assert 0 < finding.step <= lab.row(task).step and finding.evidence and len(set(finding.rollouts)) == 3
    records = json.loads(lab.marlaas("rollouts", str(task), "--finding", code, "--json"))
    assert [one["id"] for one in records] == list(finding.rollouts)
    assert {(one["step"], one["split"] == "eval") for one in records} == {(finding.step, code == "reward_hacking")}
    shown = lab.marlaas("show", str(task))
    assert "finding " in shown and "what to do " in shown


def test_a_learning_rate_that_is_far_too_high(lab: Lab) -> None:
    task = submitted(lab, "hasty", HASTY)
    for finding in ("large_steps", "gap_runaway", "kl_runaway"):
        check(lab, task, finding)


@pytest.mark.slow
def test_each_way_to_go_wrong_is_found(lab: Lab) -> None:
    lab.home.plugins.joinpath("wrong.py").write_text(PLUGIN)
    served(lab, "wrong/leaky", "ready")
    tasks = {name: submitted(lab, name, wrong) for name, wrong in WRONG.items()}
    for name, task in tasks.items():
        check(lab, task, WRONG[name].finding)


@pytest.mark.slow
def test_healthy_runs_are_left_alone(lab: Lab) -> None:
    """The demo's three environments with the shipped defaults."""
    tasks = [
        lab.submit(f"{name} {seed}", name, steps=40, train=TRAIN | {"seed": seed}, sampling={"max_tokens": tokens})
        for name, tokens, seed in (("arithmetic", 8, 0), ("arithmetic", 8, 1), ("guess", 8, 0), ("calculator", 96, 0))
    ]
    assert [found(lab, task) for task in tasks] == [{}] * len(tasks)
    assert {lab.row(task).state for task in tasks} == {"done"}
