"""Isolation over longer runs and with both samplers: alone and beside seven others, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..end_to_end.conftest import Lab
from .waiting import finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 4, "group_size": 4}
LOSSES = ("dr_grpo", "grpo", "dapo", "cispo", "gspo", "reinforce", "ppo", "dr_grpo")


def tasks() -> list[dict[str, Any]]:
    """Eight, of different environments, losses, ranks and lengths."""
    return [
        {
            "environment": ("arithmetic", "guess")[number % 2],
            "steps": 20 + 2 * number,
            "train": EXACT
            | {"loss": loss, "seed": number, "kl": 0.02 * (number % 3), "entropy": 0.01 * (number % 2)}
            | {"advantage_level": ("episode", "turn")[number // 2 % 2]},
            "policy": {"rank": (4, 16, 32)[number % 3]},
            "sampling": {"max_tokens": 6 + number},
            "eval": {"every": 10},
        }
        for number, loss in enumerate(LOSSES)
    ]


@pytest.fixture(params=["llama.cpp", "torch"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(Home(tmp_path / "home").create())
    lab.home.config.write_text(f'[rollout]\nsampler = "{request.param}"\n')
    control.ensure_running(lab.home)
    yield lab
    control.stop(lab.home)


def test_eight_tasks_together_and_each_alone(lab: Lab) -> None:
    together = [lab.submit(f"beside {n}", tenant=f"tenant {n % 4}", **task) for n, task in enumerate(tasks())]
    finished(lab, together)
    for number, task in enumerate(tasks()):
        alone = lab.submit(f"alone {number}", **task)
        finished(lab, [alone])
        with Reader(lab.home.database) as reader:
            one, other = ([version.checksum for version in reader.versions(t)] for t in (together[number], alone))
        assert one == other and len(one) == task["steps"] + 1
