"""A first hour, its results: the best of a sweep, an adapter used elsewhere, and the machine given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...end_to_end.conftest import Lab
from .person import BACKSPACE, Size, person

pytestmark = [pytest.mark.slow, pytest.mark.first_hour, pytest.mark.processes, pytest.mark.timeout(3600)]

SWEEP = """
tenant = "lab"
name = "{name}"
environment = "arithmetic"
steps = 24
[train]
groups_per_step = 4
group_size = 8
learning_rate = [1e-5, 1e-3, 3e-3]
[sampling]
max_tokens = 8
[eval]
prompts = 32
every = 8
"""


def test_the_best_of_a_sweep(lab: Lab, size: Size) -> None:
    name = f"sweep {size[0]}"
    path = lab.home.root / "sweep.toml"
    path.write_text(SWEEP.format(name=name))
    lab.marlaas("submit", str(path))
    lab.marlaas("wait", "--family", name)
    with person(lab.home, size) as me:
        me.finds(name)
        best = int(me.reads(r"best held-out [\d.]+: task (\d+)")[1])
        me.presses("enter", "open")
        me.sees("▾ sweep")
        me.learns("j", "moving")
        seen = {0}
        while best not in seen:
            me.presses("j", "moving")
            others = "|".join(map(str, seen))
            seen.add(int(me.reads(rf"\n (?!(?:{others}) )(\d+) lab / sweep")[1]))
        me.presses("enter", "open")
        me.sees(f"2 task {best}", "✓ done")
        me.leaves()


def test_an_adapter_used_elsewhere(lab: Lab, size: Size, tmp_path: Path) -> None:
    name = f"taken {size[0]}"
    task = lab.submit(name, steps=2)
    lab.marlaas("wait", str(task))
    folder = tmp_path / "mine"
    with person(lab.home, size) as me:
        me.finds(name)
        me.opens("adapters")
        me.sees(f"▸ {task} lab/{name}")
        me.presses("e", "export")
        me.types(f"{BACKSPACE * 300}{folder}", f"Export version 2 of task {task}")
        me.presses("enter", "export")
        me.sees("how to use", "Use this adapter", "PeftModel")
        me.presses("esc", "close")
        me.sees("e export", "palette")
        me.leaves()
    said = (folder / "USE.md").read_text()
    assert "PeftModel.from_pretrained" in said and str(folder) in said
    assert (folder / "adapter_model.safetensors").is_file()


def test_the_machine_is_given_back(lab: Lab, size: Size) -> None:
    task = lab.submit(f"gives way {size[0]}", steps=40_000, train={"patience": 40_000})
    lab.until(task, 1)
    with person(lab.home, size) as me:
        me.opens("engine")
        me.presses("F", "yield")
        me.sees("Yield the machine?", "2h")
        me.presses("enter", "yield")
        me.sees("yielded until", "The machine is free of workers")
        assert not lab.worker_pids("marlaas.engine.machine.workers.host")
        step = lab.row(task).step
        me.presses("B", "takes it back")
        me.sees("engine: ● alive")
        assert lab.until(task, step + 1).state == "running"
        me.leaves()
    lab.marlaas("cancel", str(task))
