"""A small profile and cluster files, for tests of the simulator."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.simulate import cluster_file
from marlaas.engine.simulate.cluster_file import (
    Case,
    Profile,
    RecordedEnvironment,
    RecordedEpisode,
    RecordedFailures,
    RecordedTurn,
    SamplerRates,
    TrainerRates,
    read_case,
)

TASK = """
tenant = "lab"
name = "talk"
environment = "talk"
steps = 3
[train]
groups_per_step = 2
group_size = 2
max_staleness = 1
[sampling]
max_tokens = 64
[eval]
every = 0
prompts = 2
"""
NODES = """
[[nodes]]
name = "a"
sequences = 16
"""
TASKS = """
[[tasks]]
file = "task.toml"
count = 4
tenants = 2
"""


def episode(random: Random, slow: float = 0.8) -> RecordedEpisode:
    """One of one to three turns, before each of which at most ``slow`` seconds pass."""
    turns = tuple(
        RecordedTurn(
            "agent", place - 1, random.uniform(0.25 * slow, slow), random.randint(4, 30), random.randint(2, 40)
        )
        for place in range(random.randint(1, 3))
    )
    return RecordedEpisode(turns, 0.01, 0.02, {"agent": float(random.random() < 0.5)})


def profile(failing: float = 0.05) -> Profile:
    """Of one environment, whose failures are as often as ``failing`` says."""
    random = Random(1)
    groups = tuple(tuple(episode(random) for _ in range(3)) for _ in range(20))
    held_out = tuple((episode(random, slow=0.0),) for _ in range(20))
    talk = RecordedEnvironment("plugin/talk", "{}", groups, held_out, RecordedFailures(failing, (0.1, 0.5)))
    return Profile(
        "made up for a test",
        (talk,),
        SamplerRates(0.002, 0.0002, 0.00005, (0.003, 0.01)),
        TrainerRates(0.01, 0.0005, (0.9, 1.1), (0.03, 0.05), a_pass=0.04),
        (0.05, 0.1),
        18_000_000,
    )


def cluster(folder: Path, text: str) -> Path:
    """A cluster file of this text, next to an empty home and a task file."""
    home = Home(folder / "recorded")
    if not home.database.exists():
        create_database(home)
    (folder / "task.toml").write_text(TASK, encoding="utf-8")
    path = folder / "cluster.toml"
    path.write_text(f'from = "recorded"\n{text}', encoding="utf-8")
    return path


def case_of(path: Path, made: Profile | None = None) -> Case:
    """The file's case, as if the made-up profile were recorded in its home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_file, "record", lambda home: made or profile())
        return read_case(path)
