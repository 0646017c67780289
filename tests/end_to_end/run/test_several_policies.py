"""Tasks of several policies on a real engine: bit for bit the same whoever dies, and better together than alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from marlaas.engine.faults import VARIABLE, Point
from marlaas.engine.store.queries.reader import Reader
from tests.arming import arm, recorded
from tests.kills import Lab, TaskFile, exact_pair, finish, opponent_pool
from tests.oracle.audit import audit

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

STEPS = 4
DEADLY = {Point.GROUP_INSIDE: 3, Point.SAMPLER_LOADED: 4, Point.COMMIT_DONE: 3, Point.STATE_NAMED: 5}


@pytest.fixture(autouse=True)
def without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.slow
def test_deaths_in_the_middle_of_plays_and_steps_change_no_bit(tmp_path: Path) -> None:
    calm, stormy = Lab.make(tmp_path / "calm", 0, faults=False), Lab.make(tmp_path / "stormy", 0, faults=True)
    for point, count in DEADLY.items():
        arm(stormy.folder, point, count, "once")
    for lab in (stormy, calm):
        lab.submit([exact_pair(STEPS), opponent_pool(1, STEPS)])
        while any(row.unfinished for row in lab.look()):  # as a person would: start the engine again
            lab.start()
        finish(lab)
        lab.stop()
    assert {one.point for one in recorded(stormy.folder) if one.died} == set(DEADLY)
    assert versions(stormy, 1) == versions(calm, 1) and len(set(versions(calm, 1))) == 2 * (STEPS + 1)
    assert stormy.lost() == []
    for lab in (stormy, calm):
        report = audit(lab.home.root)
        assert report.problems == [] and report.proven["updates"] == 3 * STEPS
        assert report.proven["partners are who they should be"] > 0


def versions(lab: Lab, task: int) -> list[tuple[str, int, str]]:
    """Policy, number and checksum of all versions of a task."""
    with Reader(lab.home.database) as reader:
        return sorted((row.policy, row.number, row.checksum) for row in reader.versions(task))


TRAINED, BASE = "{}", '{frozen = "base"}'
TASK = """\
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
    return TaskFile(name, TASK.format(name=name, environment="relay", policies=policies, agents=agents, measured=""))


def race(name: str) -> TaskFile:
    agents = 'first = "player"\nsecond = "player"'
    measured = 'rotate = true\nagents = {second = "player@0"}'
    return TaskFile(
        name, TASK.format(name=name, environment="race", policies="player = {}", agents=agents, measured=measured)
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_self_play_gains_and_two_policies_beat_one(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path / "home", 0, faults=False)
    lab.submit([race("race"), relay("both", TRAINED, TRAINED), relay("adder", TRAINED, BASE)])
    lab.submit([relay("sorter", BASE, TRAINED)])
    finish(lab)
    lab.stop()
    played, both, adder, sorter = (score(lab, task) for task in (1, 2, 3, 4))
    assert played[0] - 1.96 * played[1] > 0.5, "no better than the version that it started from"
    for alone in (adder, sorter):
        assert both[0] - 1.96 * math.hypot(both[1], alone[1]) > alone[0], "one policy alone is as good"


def score(lab: Lab, task: int) -> tuple[float, float]:
    """The score of a task's first trained policy after training, and its standard error."""
    with Reader(lab.home.database) as reader:
        rows = sorted(reader.evals(task), key=lambda row: row.step)
    for row in rows:
        print(f"task {task}, step {row.step}: {row.score} ± {row.stderr}")
    assert rows[-1].score is not None
    return rows[-1].score, rows[-1].stderr
