"""A base of one's own, as a user takes it: refused where it would orphan work, and trained where it would not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from tools.random_base.make import make_base

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture
def new_lab(tmp_path: Path) -> Iterator[Callable[[str], Lab]]:
    """Makes homes; their engines end with the test."""
    labs: list[Lab] = []

    def new(name: str) -> Lab:
        labs.append(Lab(Home(tmp_path / name)))
        return labs[-1]

    yield new
    for lab in labs:
        if holder(lab.home.lock) is not None:
            control.stop(lab.home)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base in the layout of Qwen2.5, in two shards, with random weights."""
    return make_base(tmp_path / "qwen", "qwen2.5", "mini", rows=2048).path


def used(lab: Lab) -> list[str]:
    return [row["name"] for row in json.loads(lab.marlaas("base", "list", "--json")) if row["used"]]


def test_another_base_gets_a_home_of_its_own_or_waits(new_lab: Callable[[str], Lab], folder: Path) -> None:
    lab = new_lab("home")
    lab.marlaas("home", "new")
    task = lab.submit("long", steps=100_000)
    assert lab.until(task, 1).step >= 1
    refused = lab.marlaas("base", "use", str(folder), code=2)
    assert f"task {task} (lab/long)" in refused and "marlaas --home DIR base use" in refused
    lab.until(task, lab.row(task).step + 1)  # it goes on
    assert used(lab) == ["tiny"]
    lab.marlaas("engine", "stop")

    second = new_lab("second")
    second.marlaas("base", "use", str(folder))
    assert used(second) == [str(folder)]
    with pytest.raises(MarlaasError, match="is meant for the base 'tiny', but this home's base is"):
        second.submit("other", base="tiny")

    documented = lab.home.config.read_text()
    lab.home.config.write_text(documented.replace('# base = "tiny"', f"base = {json.dumps(str(folder))}"))
    refused = lab.marlaas("engine", "start", code=2)
    assert f"the unfinished task {task} (lab/long) belongs to another base (tiny)" in refused
    assert "marlaas --home DIR base use" in refused and "`marlaas base use tiny`" in refused
    assert holder(lab.home.lock) is None

    lab.marlaas("base", "use", "tiny")
    assert "cannot be deleted" in lab.marlaas("adapters", "delete", str(task), code=2)
    lab.marlaas("cancel", str(task))
    assert f"the adapters of task {task}" in lab.marlaas("base", "use", str(folder), code=2)
    deleted = json.loads(lab.marlaas("adapters", "delete", str(task), "--json"))
    assert deleted["bytes"] > 0 and deleted["deleted"]
    assert not list(lab.home.adapters.rglob("*.safetensors"))
    lab.marlaas("base", "use", str(folder))
    assert holder(lab.home.lock) is None and used(lab) == [str(folder)]
    again = lab.submit("sums", base=str(folder), steps=1)
    lab.marlaas("wait", str(again))
    assert (lab.show(again)["state"], lab.show(again)["step"]) == ("done", 1)


@pytest.mark.slow
def test_check_measures_with_real_workers(new_lab: Callable[[str], Lab], folder: Path) -> None:
    lab = new_lab("checked")
    found = json.loads(lab.marlaas("base", "check", str(folder), "--weights", "f32,q8_0,bf16", "--json"))
    exact, rounded, halved = found["tried"]
    assert [one["weights"] for one in found["tried"]] == ["f32", "q8_0", "bf16"]
    assert exact["agreement"]["gap_max"] < 1e-3 < rounded["agreement"]["gap_max"]
    assert exact["agreement"]["gap_max"] < halved["agreement"]["gap_max"], "torch samples in bfloat16"
    assert exact["file_bytes"] > 2 * rounded["file_bytes"] > halved["file_bytes"] == 0
    assert all(one["seconds"] > 0 and one["trial"]["groups"] == 8 for one in found["tried"])
    assert found["verdict"] == "fit" and "a step on this CPU" in found["text"]
    assert not list(lab.home.scratch.iterdir()) and not lab.home.database.exists()
