"""A real engine trains one policy on two environments, is killed meanwhile, and measures both."""

from __future__ import annotations

import json
import math

import pytest

from .conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

BOTH = """
tenant = "lab"
name = "both"
steps = 4
[[mixture]]
environment = "arithmetic"
share = 2
config = { digits = 1 }
[[mixture]]
environment = "guess"
name = "game"
[train]
groups_per_step = 3
group_size = 4
[sampling]
max_tokens = 8
[eval]
prompts = 8
every = 2
test_prompts = 4
"""


def test_a_killed_engine_goes_on_with_both(lab: Lab) -> None:
    path = lab.home.root / "both.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BOTH)
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    lab.until(number, 1)
    lab.kill_engine()
    lab.marlaas("engine", "start")
    lab.marlaas("wait", str(number))

    rows = lab.show(number)["eval"]
    places = {(row["suite"], row["split"]) for row in rows}
    assert places == {(suite, split) for suite in ("", "arithmetic", "game") for split in ("eval", "test")}
    for whole in (row for row in rows if not row["suite"]):
        like = [row for row in rows if (row["split"], row["step"]) == (whole["split"], whole["step"])]
        sums, game = ([row for row in like if row["suite"] == name][-1] for name in ("arithmetic", "game"))
        # the same few operations on the same numbers, in another order
        assert whole["score"] == pytest.approx((2 * sums["score"] + game["score"]) / 3, rel=1e-9)
        error = math.hypot(2 * sums["stderr"], game["stderr"]) / 3
        assert whole["stderr"] == pytest.approx(error, rel=1e-9)
        assert whole["n"] == sums["n"] + game["n"] and whole["prompts"] == sums["prompts"] + game["prompts"]
    shown = " ".join(lab.marlaas("show", str(number)).split())
    assert "component arithmetic 67%, held-out " in shown and "component game 33%, held-out " in shown

    groups = {}
    for component in ("arithmetic", "game"):
        found = json.loads(lab.marlaas("env", "replay", str(number), "--component", component, "--json"))
        assert found["rewards"] == found["unchanged"]
        groups[component] = found["rewards"]
    assert groups == {"arithmetic": 8 * 4, "game": 4 * 4}
    lab.sound(number)
