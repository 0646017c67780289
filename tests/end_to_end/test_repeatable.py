"""Runs that repeat themselves to the last bit: alone, with others, made longer, and whoever dies; several policies."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.faults import VARIABLE, Point
from marlaas.engine.store.queries.reader import Reader
from tests import kills
from tests.arming import arm, recorded
from tests.kills import TaskFile, finish
from tests.oracle.audit import audit

from .conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 4}
FEW = {"prompts": 2, "every": 0}
WATCHED: list[dict[str, Any]] = [
    {"environment": "guess", "steps": 3, "train": EXACT | {"advantage_level": "turn", "entropy": 0.01}},
    {"environment": "arithmetic", "steps": 2, "train": EXACT | {"loss": "cispo", "kl": 0.05}, "policy": {"rank": 4}},
    {
        "environment": "relay",
        "steps": 2,
        "train": EXACT,
        "agents": {"adder": "adder", "sorter": "sorter"},
        "policies.adder": {"rank": 4},
        "policies.sorter": {"rank": 8, "groups_per_step": 3},
    },
]
OTHERS: list[dict[str, Any]] = [
    {"environment": "arithmetic", "steps": 2},
    {"environment": "guess", "steps": 2, "train": {"loss": "gspo", "max_staleness": 4}},
    {"environment": "arithmetic", "steps": 4, "train": {"loss": "reinforce", "group_size": 6}, "policy": {"rank": 32}},
    {
        "environment": "guess",
        "steps": 2,
        "train": {"loss": "ppo", "learning_rate": 2e-3},
        "sampling": {"max_tokens": 12},
    },
    {"environment": "arithmetic", "steps": 3, "train": EXACT | {"seed": 7}, "environment_config": {"digits": 1}},
    {"environment": "guess", "steps": 2, "train": {"groups_per_step": 3, "max_staleness": 1}},
]


def versions(lab: Lab | kills.Lab, task: int) -> list[tuple[str, int, str]]:
    """Policy, number and checksum of all versions of a task."""
    with Reader(lab.home.database) as reader:
        return sorted((row.policy, row.number, row.checksum) for row in reader.versions(task))


@pytest.mark.parametrize("count", [2, pytest.param(len(OTHERS), marks=pytest.mark.slow)])
def test_alone_with_others_and_made_longer_give_the_same_bits(lab: Lab, count: int) -> None:
    alone = []
    for number, task in enumerate(WATCHED):
        alone.append(lab.submit(f"alone {number}", eval=FEW, **task))
        lab.marlaas("wait", str(alone[-1]))
    others = [
        lab.submit(f"other {number}", tenant=f"tenant {number % 3}", eval=FEW, **task)
        for number, task in enumerate(OTHERS[:count])
    ]
    watched = [
        lab.submit(f"watched {number}", tenant="watched", eval=FEW, **task) for number, task in enumerate(WATCHED)
    ]
    short = lab.submit("short", eval=FEW, **WATCHED[0] | {"steps": 2})
    lab.marlaas("wait", *map(str, [*watched, short, *others]))
    lab.marlaas("extend", str(short), "--steps", "1")
    assert "short: done, step 3 of 3" in lab.marlaas("watch", str(short), "--plain").splitlines()[-1]
    steps = [json.loads(row)["step"] for row in lab.marlaas("metrics", str(short), "--jsonl").splitlines()]
    assert steps == [0, 1, 2, 2, 3, 3] and versions(lab, short) == versions(lab, alone[0])
    for first, second, task in zip(alone, watched, WATCHED, strict=True):
        assert versions(lab, first) == versions(lab, second)
        assert len(set(versions(lab, first))) == (task["steps"] + 1) * len(task.get("agents", "1"))
    shown = json.loads(lab.marlaas("stats", "--json", "--since", "1h"))
    assert {tenant["tenant"] for tenant in shown["tenants"]} >= {"lab", "watched", "tenant 0"}
    assert all(stage["utilisation"] > 0 for stage in shown["stages"] if stage["stage"] != "environment")


PLUGIN = """
import asyncio
from marlaas.plugins import env

@env(agents=("quick", "slow"))
async def uneven(ep):
    text = str(ep.rng.randrange(1000))
    said = await ep.agent("quick").ask(text)
    ep.reward(sum(map(str.isdigit, said.text)) / 8, agent="quick", final=True)
    if ep.split == "train" and ep.noise.random() < 0.3:
        await asyncio.sleep(3)
    reply = await ep.agent("slow").ask(text)
    return {"slow": sum(map(str.isdigit, reply.text)) / 8}
"""
UNEVEN = """\
tenant = "lab"
name = "{name}"
environment = "uneven"
steps = 2
[policies]
quick = {{rank = 4}}
slow = {{rank = 4}}
[agents]
quick = "quick"
slow = "slow"
[train]
groups_per_step = 2
group_size = 6
learning_rate = 1e-3
max_staleness = 0
deterministic = {exact}
[sampling]
max_tokens = 8
max_episode_tokens = 32
[eval]
every = 0
prompts = 2
"""
DEADLY = {Point.MEMBERS_INSIDE: 1, Point.MEMBERS_KEPT: 2}


@pytest.fixture
def without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.slow
@pytest.mark.usefixtures("without_faults")
def test_deaths_while_plays_are_open_change_no_bit(tmp_path: Path) -> None:
    """Episodes that have ended outlive a killed engine. ``make kills`` does the same at all other points."""
    calm = kills.Lab.make(tmp_path / "calm", 0, faults=False)
    stormy = kills.Lab.make(tmp_path / "stormy", 0, faults=True)
    for point, count in DEADLY.items():
        arm(stormy.folder, point, count, "once")
    for lab in (stormy, calm):
        plugins = lab.home.plugins
        plugins.mkdir(exist_ok=True)
        (plugins / "uneven.py").write_text(PLUGIN)
        tasks = {"exact": "true", "loose": "false"}
        lab.submit([TaskFile(name, UNEVEN.format(name=name, exact=exact)) for name, exact in tasks.items()])
        while any(row.unfinished for row in lab.look()):  # as a person would: start the engine again
            lab.start()
        finish(lab)
        lab.stop()
    assert {reached.point for reached in recorded(stormy.folder) if reached.died} == set(DEADLY)
    assert versions(stormy, 1) == versions(calm, 1) and len(set(versions(calm, 1))) == 2 * 3
    assert stormy.lost() == []
    for lab in (stormy, calm):
        report = audit(lab.home.root)
        assert report.problems == [] and report.proven["every group is consumed once"] == 4


TRAINED, BASE = "{}", '{frozen = "base"}'
PAIR = """\
tenant = "{environment}"
name = "{name}"
environment = "{environment}"
steps = 30
[policies]
{policies}
[agents]
{agents}
[train]
learning_rate = 1e-3
[sampling]
max_tokens = 8
[eval]
every = 0
prompts = 256
{measured}
"""


def relay(name: str, adder: str, sorter: str) -> TaskFile:
    agents = 'adder = "adder"\nsorter = "sorter"'
    policies = f"adder = {adder}\nsorter = {sorter}"
    return TaskFile(name, PAIR.format(name=name, environment="relay", policies=policies, agents=agents, measured=""))


def race(name: str) -> TaskFile:
    agents = 'first = "player"\nsecond = "player"'
    measured = 'rotate = true\nagents = {second = "player@0"}'
    return TaskFile(
        name, PAIR.format(name=name, environment="race", policies="player = {}", agents=agents, measured=measured)
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("without_faults")
def test_self_play_gains_and_two_policies_beat_one(tmp_path: Path) -> None:
    lab = kills.Lab.make(tmp_path / "home", 0, faults=False)
    lab.submit([race("race"), relay("both", TRAINED, TRAINED), relay("adder", TRAINED, BASE)])
    lab.submit([relay("sorter", BASE, TRAINED)])
    finish(lab)
    lab.stop()
    scores = []
    with Reader(lab.home.database) as reader:
        for task in (1, 2, 3, 4):  # of the first trained policy, after training
            last = max(reader.evals(task), key=lambda row: row.step)
            assert last.score is not None
            scores.append((last.score, last.stderr))
    played, both, *alone = scores
    assert played[0] - 1.96 * played[1] > 0.5, "no better than the version that it started from"
    for score, error in alone:
        assert both[0] - 1.96 * math.hypot(both[1], error) > score, "one policy alone is as good"
