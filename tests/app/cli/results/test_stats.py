"""stats: what the store's rows say of the stages, tenants and tasks, in 80 columns and as JSON."""

from __future__ import annotations

import time

import pytest

from marlaas.app.cli.results import begin
from marlaas.engine.home.paths import Home

from ...commanding import Commander
from ...filling import HOSTILE, Filling

TODAY, DAY_BEFORE = (time.strftime("%Y-%m-%d", time.gmtime(time.time() - ago)) for ago in (0, 86400))


def fill(filling: Filling) -> None:
    """Two tenants, three tasks; one second of each stage now, and one yesterday."""
    for name, weight in (("lab", 2.0), ("club", 1.0)):
        filling.insert("tenants", name=name, weight=weight, created=0.0)
    for number, tenant in enumerate(("lab", "lab", "club"), start=1):
        config = '{"train": {"groups_per_step": 2}}'
        filling.insert(
            "tasks",
            id=number,
            tenant=tenant,
            name=f"sums {number}",
            environment="e",
            state="running" if number == 1 else "done",
            config=config,
            created=0.0,
            steps=9,
        )
        for stage, seconds in (("rollout", 6.0 * number), ("training", 3.0), ("environment", 90.0)):
            filling.insert("usage", day=TODAY, task=number, stage=stage, tokens=100 * number, seconds=seconds)
    filling.insert("usage", day=DAY_BEFORE, task=3, stage="rollout", tokens=5, seconds=1.0)
    filling.insert("policies", id=1, task=1, name="policy", config="{}", step=3)
    for number, state in ((5, "consumed"), (6, "complete"), (8, "complete")):
        filling.insert(
            "groups",
            policy=1,
            split="train",
            number=number,
            instance=0,
            version=0,
            environment_version="",
            state=state,
            created=0.0,
        )
    for begun in (time.time() - 0.5, time.time() - 90000):
        sample(filling, "rollout", begun, "core 0", 0.9, 4.0, 12.0, 700)
        sample(filling, "environment", begun, "cpu", 0.2, 0.0, 6.0, 100)
        sample(filling, "training", begun, "core 1", 0.5, 1.0, 1.5, 20)
        sample(filling, "engine", begun, "cpu", 0.02, 0.0, 0.0, 0)


def sample(
    filling: Filling, name: str, begun: float, device: str, busy: float, waiting: float, active: float, ended: int
) -> None:
    filling.insert(
        "stages",
        incarnation=1,
        stage=name,
        device=device,
        begun=begun,
        wall=1.0,
        busy=busy,
        waiting=waiting,
        active=active,
        ended=ended,
    )


def test_the_tables_fit_eighty_columns(filling: Filling, marlaas: Commander) -> None:
    fill(filling)
    said = marlaas("stats")
    assert said.code == 0 and max(map(len, said.out.splitlines())) <= 80
    lines = [text.split() for text in said.out.splitlines()]
    assert ["rollout", "core", "0", "90", "%", "4.0", "12.0", "700", "turns"] in lines
    assert ["engine", "cpu", "2", "%"] in lines
    assert ["lab", "2", "53", "%", "900", "18", "s", "6", "s", "3", "min", "00", "s"] in lines
    assert ["1", "lab", "sums", "1", "300", "6", "s", "3", "s", "1", "min", "30", "s", "2"] in lines
    assert "0.2 ms of processor time an episode" in said.out and "of adapters" in said.out


def test_json_holds_the_same(filling: Filling, marlaas: Commander) -> None:
    fill(filling)
    said = marlaas("stats", "--json", "--since", "all", "--tenant", "club").json
    rollout = said["stages"][0]
    assert (rollout["stage"], rollout["wall"], rollout["ended"]) == ("rollout", 2.0, 1400)
    assert rollout["utilisation"] == pytest.approx(0.9)
    assert said["engine_seconds_per_episode"] == pytest.approx(0.0002)
    assert [task["id"] for task in said["tasks"]] == [3] and said["tasks"][0]["rollout"] == 19.0
    (tenant,) = said["tenants"]
    assert (tenant["tenant"], tenant["tokens"]) == ("club", 905)
    assert tenant["share"] == pytest.approx(22.0 / 46.0)
    assert said["disk"]["database"] > 0


def test_only_the_time_asked_for_counts(filling: Filling, marlaas: Commander) -> None:
    fill(filling)
    assert marlaas("stats", "--json", "--since", "1h").json["stages"][0]["ended"] == 700
    assert marlaas("stats", "--json", "--since", "2d").json["stages"][0]["ended"] == 1400


def test_names_cannot_write_on_the_terminal(filling: Filling, marlaas: Commander) -> None:
    fill(filling)
    filling.execute("UPDATE tasks SET name = ?, tenant = ?", HOSTILE.replace("\ud800", ""), "\x1b[2J")
    said = marlaas("stats")
    assert said.code == 0 and "\x1b" not in said.out


def test_a_home_in_which_nothing_ran_says_so(home: Home, marlaas: Commander) -> None:
    said = marlaas("stats")
    assert (said.code, said.out) == (0, "") and "Nothing has run" in said.err


def test_an_engine_that_did_nothing_yet_is_no_error(filling: Filling, marlaas: Commander) -> None:
    said = marlaas("stats")
    assert said.code == 0 and "No engine has run" in said.err and "of adapters" in said.out


def test_times() -> None:
    assert begin("all") == 0.0
    assert begin("today") % 86400 == 0 and 0 <= time.time() - begin("today") < 86400
    assert time.time() - begin("30m") == pytest.approx(1800, abs=5)
