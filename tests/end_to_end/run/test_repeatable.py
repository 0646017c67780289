"""``deterministic = true``: a run repeats itself to the last bit, alone or beside others, in ``test-slow`` eight."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marlaas.engine.store.queries.reader import Reader

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 4}
WATCHED: list[dict[str, Any]] = [
    {"environment": "guess", "steps": 4, "train": EXACT | {"advantage_level": "turn", "entropy": 0.01}},
    {"environment": "arithmetic", "steps": 3, "train": EXACT | {"loss": "cispo", "kl": 0.05}, "policy": {"rank": 4}},
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
    {"environment": "arithmetic", "steps": 5},
    {"environment": "guess", "steps": 3, "train": {"loss": "gspo", "max_staleness": 4}},
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


def checksums(lab: Lab, task: int) -> list[str]:
    with Reader(lab.home.database) as reader:
        return [version.checksum for version in reader.versions(task)]


@pytest.mark.parametrize("count", [2, pytest.param(len(OTHERS), marks=pytest.mark.slow)])
def test_alone_and_beside_others_give_the_same_bits(lab: Lab, count: int) -> None:
    alone = []
    for number, task in enumerate(WATCHED):
        alone.append(lab.submit(f"alone {number}", **task))
        lab.marlaas("wait", str(alone[-1]))
    others = [
        lab.submit(f"other {number}", tenant=f"tenant {number % 3}", **task)
        for number, task in enumerate(OTHERS[:count])
    ]
    beside = [lab.submit(f"beside {number}", tenant="watched", **task) for number, task in enumerate(WATCHED)]
    lab.marlaas("wait", *map(str, [*beside, *others]))
    for one, other, task in zip(alone, beside, WATCHED, strict=True):
        assert checksums(lab, one) == checksums(lab, other)
        assert len(set(checksums(lab, one))) == (task["steps"] + 1) * len(task.get("agents", "1"))
    shown = json.loads(lab.marlaas("stats", "--json", "--since", "1h"))
    assert {tenant["tenant"] for tenant in shown["tenants"]} >= {"lab", "watched", "tenant 0"}
    assert all(stage["utilisation"] > 0 for stage in shown["stages"] if stage["stage"] != "environment")


def test_made_longer_is_long_from_the_start(lab: Lab) -> None:
    long = lab.submit("long", environment="guess", steps=4, train=EXACT)
    short = lab.submit("short", environment="guess", steps=2, train=EXACT)
    falling = lab.submit("falling", steps=1, train={"schedule": "cosine"})
    lab.marlaas("wait", *map(str, (long, short, falling)))
    lab.marlaas("extend", str(short), "--steps", "2")
    assert "would rise again" in lab.marlaas("extend", str(falling), "--steps", "2", code=2)
    assert "short: done, step 4 of 4" in lab.marlaas("watch", str(short), "--plain").splitlines()[-1]
    assert checksums(lab, short) == checksums(lab, long) and len(set(checksums(lab, long))) == 5
    steps = [json.loads(row)["step"] for row in lab.marlaas("metrics", str(short), "--jsonl").splitlines()]
    assert steps == [0, 1, 2, 2, 3, 4, 4]
