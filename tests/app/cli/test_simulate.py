"""simulate: what it prints, what it keeps and records, and one sentence where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

from marlaas.engine.home.paths import Home

from ...engine.simulate.made_up import NODES, TASKS, cluster
from ..commanding import Commander, Said


def refused(said: Said, why: str) -> None:
    assert said.code == 2 and why in said.err and not said.out


def test_figures_are_printed(tmp_path: Path, marlaas: Commander) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    said = marlaas("simulate", str(path))
    assert said.out.startswith("tasks") and "4 of 4 done, 12 steps" in said.out
    for words in ("makespan", "95 % within", "rollout on core 0", "placement", "lab-2", "gaps"):
        assert words in said.out
    assert "not comparable" in said.err
    told = marlaas("simulate", str(path), "--json").json
    assert told["gaps"] == told["beyond"] == 0 and told["tasks"] == 4 and told["starts"] == 1
    assert told["engine"]["per_simulated_second"] > 0 and {"by_package", "dearest"} < told["engine"].keys()
    assert marlaas("simulate", str(path), "--json", "--seed", "5").json["makespan"] != told["makespan"]


def test_a_simulated_home_is_kept_and_whole(tmp_path: Path, marlaas: Commander) -> None:
    path, kept = cluster(tmp_path, NODES + TASKS), tmp_path / "kept"
    assert marlaas("simulate", str(path), "--keep", str(kept)).code == 0
    assert "Nothing is wrong." in marlaas("--home", str(kept), "home", "check").out
    refused(marlaas("simulate", str(path), "--keep", str(kept)), "holds other things")


def test_a_profile_is_recorded_from_a_home(tmp_path: Path, home: Home, marlaas: Commander) -> None:
    """Even from that of a simulation, which has the same rows."""
    path, kept, made = cluster(tmp_path, NODES + TASKS), tmp_path / "kept", tmp_path / "made.json"
    marlaas("simulate", str(path), "--keep", str(kept))
    said = marlaas("simulate", "--record", str(kept), "--out", str(made))
    assert "24 groups of talk" in said.out
    assert "dots" not in made.read_text() and json.loads(made.read_text())["format"] == 1
    path.write_text(path.read_text().replace("profile.json", "made.json"), encoding="utf-8")
    assert marlaas("simulate", str(path), "--json").json["done"] == 4


def test_what_does_not_go_together_is_told(tmp_path: Path, marlaas: Commander) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    refused(marlaas("simulate"), "Name a cluster file")
    refused(marlaas("simulate", str(path), "--out", "x"), "`--out` goes with `--record`")
    refused(marlaas("simulate", str(path), "--record", "x", "--out", "y"), "do not go together")
    refused(marlaas("simulate", "--record", "x"), "needs `--out FILE`")
    refused(marlaas("simulate", "--record", str(tmp_path / "x"), "--out", "y"), "no such home")
    refused(marlaas("simulate", str(tmp_path / "lost.toml")), "cannot be read")
