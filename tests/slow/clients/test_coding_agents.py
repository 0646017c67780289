"""Each ready-made form of ``env.agent`` with the real program, trained for two steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins.programs.agents import FORMS
from tests.end_to_end.conftest import Lab
from tools.environments import client

from .conftest import metric, stored, trained

pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(3600)]

PLUGIN = """
import zlib
from marlaas.plugins import env

def rows(split):
    return [dict(prompt=f"What is {{n}} + 1?") for n in range(20) if (n % 5 == 0) != (split == "train")]

def chance(run):
    return zlib.crc32(run.stdout.encode()) % 1009 / 1008

it = env.agent({agent!r}, name="it", data=rows, reward=chance, exit_codes=(0, 1), timeout=600)
"""
STEPS, MEMBERS = 2, 2
REWRITES = {"mini-swe-agent": 3}
"""Trajectories of those that leave the replies of a random base out of their history: it calls no tool."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The engine that is started next finds them."""
    folders = [client("npm") / "node_modules" / ".bin", *(client(name) / "bin" for name in ("aider", "mini-swe-agent"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([os.environ["PATH"], *map(str, folders)]))
        yield


@pytest.mark.parametrize("agent", FORMS)
def test_an_agent_is_trained_as_it_is(installed: None, long_lab: Lab, agent: str) -> None:
    if shutil.which(FORMS[agent].command[0]) is None:
        pytest.skip("`python -m tools.environments clients` installs it")
    name = agent.replace("-", "_")
    draft = Path(long_lab.home.plugins / f"{name}.draft")
    draft.write_text(PLUGIN.format(agent=agent))
    draft.rename(draft.with_suffix(".py"))
    task = long_lab.submit(
        agent,
        f"{name}/it",
        steps=STEPS,
        train={"groups_per_step": 1, "group_size": MEMBERS, "max_staleness": 0},
        sampling={"max_tokens": 24, "max_episode_tokens": 2048},
        eval={"prompts": 1, "every": 0},
    )
    trained(long_lab, task, 3000)
    episodes = stored(long_lab, task)
    assert [episode.status for episode in episodes] == ["ok"] * STEPS * MEMBERS
    assert {len(episode.parts) for episode in episodes} == {REWRITES.get(agent, 1)}
    gaps = metric(long_lab, task, "gap_max")
    assert len(gaps) == STEPS and max(gaps) < 1e-3, "the trainer computes what the sampler drew from the same tokens"
