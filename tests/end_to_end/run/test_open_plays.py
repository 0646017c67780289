"""Episodes that have ended outlive a killed engine, and no bit changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.faults import VARIABLE, Point
from marlaas.engine.store.queries.reader import Reader
from tests.arming import arm, recorded
from tests.kills import Lab, TaskFile, finish
from tests.oracle.audit import audit

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

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
TASK = """\
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


@pytest.fixture(autouse=True)
def without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.slow
def test_deaths_while_plays_are_open_change_no_bit(tmp_path: Path) -> None:
    calm, stormy = Lab.make(tmp_path / "calm", 0, faults=False), Lab.make(tmp_path / "stormy", 0, faults=True)
    for point, count in DEADLY.items():
        arm(stormy.folder, point, count, "once")
    for lab in (stormy, calm):
        plugins = lab.home.plugins
        plugins.mkdir(exist_ok=True)
        (plugins / "uneven.py").write_text(PLUGIN)
        lab.submit([TaskFile(name, TASK.format(name=name, exact=exact)) for name, exact in TASKS.items()])
        while any(row.unfinished for row in lab.look()):  # as a person would: start the engine again
            lab.start()
        finish(lab)
        lab.stop()
    assert {one.point for one in recorded(stormy.folder) if one.died} == set(DEADLY)
    assert versions(stormy, 1) == versions(calm, 1) and len(set(versions(calm, 1))) == 2 * 3
    assert stormy.lost() == []
    for lab in (stormy, calm):
        report = audit(lab.home.root)
        assert report.problems == [] and report.proven["every group is consumed once"] == 4


TASKS = {"exact": "true", "loose": "false"}


def versions(lab: Lab, task: int) -> list[tuple[str, int, str]]:
    """Policy, number and checksum of all versions of a task."""
    with Reader(lab.home.database) as reader:
        return sorted((row.policy, row.number, row.checksum) for row in reader.versions(task))
