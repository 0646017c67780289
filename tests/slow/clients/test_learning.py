"""Programs on unchanged libraries teach the shipped base something: their reward rises."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Lab

from .conftest import PROGRAMS, metric, python, shipped_lab, trained

__all__ = ["shipped_lab"]
pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(1800)]

STEPS = 14
RISE = 0.1
"""Of the mean reward, from the first steps to the last: five times what chance does to the means of 48 episodes. It was
0.24 to 0.26, at half the learning rate and at twice."""


@pytest.mark.parametrize("library", ["openai", "anthropic", "langgraph"])
def test_the_reward_rises(shipped_lab: Lab, library: str) -> None:
    name = f"learn_{library}"
    text = f"""
from marlaas.plugins import env

{name} = env.program(
    {[str(python(library)), f"{name}.py"]!r},
    files={{"{name}.py": {(PROGRAMS / f"{name}.py").read_text()!r}}},
    reward="reward.txt",
    timeout=240,
)
"""
    (shipped_lab.home.plugins / f"{name}.py").write_text(text)
    task = shipped_lab.submit(
        name.replace("_", "-"),
        f"{name}/{name}",
        steps=STEPS,
        train={"groups_per_step": 2, "group_size": 8, "learning_rate": 1e-3},
        sampling={"max_tokens": 8},
        eval={"prompts": 1, "every": 0},
    )
    trained(shipped_lab, task, 1500)
    assert shipped_lab.show(task)["step"] == STEPS
    rewards = metric(shipped_lab, task, "reward")
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert last - first > RISE, rewards
