"""A task trains on a reasoning-gym dataset with the shipped base: from a file in the plugins folder to more reward."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home

from ..end_to_end.conftest import Lab
from .conftest import LIBRARIES, PATIENCE

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

PLUGIN = """
# /// script
# dependencies = ["reasoning-gym==0.1.25"]
# ///
from marlaas.plugins.adapters import reasoning_gym

# The shipped base reads sums as 4-1=, and nothing else: the question's words are left out.
sums = reasoning_gym(
    "chain_sum",
    prompt=lambda question: question.partition(": ")[2].replace(" ", ""),
    min_terms=2,
    max_terms=2,
    max_digits=1,
)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(Home(tmp_path / "home").create())
    made.home.config.write_text('[environments]\nallow = "always"\n')
    LIBRARIES.mkdir(exist_ok=True)
    made.home.venvs.symlink_to(LIBRARIES)
    (made.home.plugins / "sums.py").write_text(PLUGIN)
    control.ensure_running(made.home)
    yield made
    control.stop(made.home)


def served(lab: Lab, environment: str) -> None:
    """Wait until an environment is, its libraries installed."""
    state, deadline = "", time.monotonic() + PATIENCE
    while state != "ready":
        assert time.monotonic() < deadline and state not in ("broken", "waiting"), lab.marlaas("env", "list")
        time.sleep(0.2)  # the engine is another process: there is nothing to await
        rows = json.loads(lab.marlaas("env", "list", "--json"))
        state = next((row["state"] for row in rows if row["name"].startswith(environment.partition("/")[0])), "")


def test_a_policy_learns_chain_sum(lab: Lab) -> None:
    served(lab, "sums/chain_sum")
    task = lab.submit(
        "chain sum",
        "sums/chain_sum",
        steps=60,
        train={"groups_per_step": 8, "group_size": 8},
        eval={"prompts": 64, "every": 0},
    )
    while lab.row(task).unfinished:
        time.sleep(0.2)
    shown = lab.show(task)
    assert (shown["state"], shown["step"]) == ("done", 60), shown
    scores = [entry["score"] for entry in shown["eval"]]
    assert scores[-1] > scores[0] + 0.05, shown["eval"]
