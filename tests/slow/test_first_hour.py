"""Tasks of a first hour, each done from the screens alone, with the keys pressed, at three sizes of the terminal.

Who does them is told nothing but what stands on the screen: each key comes after a text that names it or calls for it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ..end_to_end.conftest import Lab
from ..end_to_end.terminal import Terminal, terminal
from ..end_to_end.test_live_environments import served

pytestmark = [pytest.mark.slow, pytest.mark.first_hour, pytest.mark.processes, pytest.mark.timeout(600)]

Size = tuple[int, int]

EDITOR = """#!{python}
import pathlib, sys

path = pathlib.Path(sys.argv[-1])
edit = min(pathlib.Path({edits!r}).glob(path.stem + "-*"))
path.write_text(edit.read_text())
edit.unlink()
"""
SPELLED = '''from marlaas.plugins import env


@env
async def {name}(ep):
    """Spell a word backwards."""
    word = "".join(ep.rng.choice("abcdefgh") for _ in range(4))
    reply = await ep.ask(f"reverse {{word}}")
    right = sum(a == b for a, b in zip(reply.text, word[::-1]))
    return right / len(word)
'''
SOLVED = """
from marlaas.plugins import env

@env
async def solved(ep):
    await ep.ask(f"say {ep.rng.randint(0, 999)}")
    return 1.0
"""
FRAGILE = """
from marlaas.plugins import env

@env
async def fragile(ep):
    reply = await ep.ask(f"number {ep.rng.randint(0, 999)}")
    if ep.index % 4 == 3:
        raise ValueError("no sign in the reply")
    return reply.text[:1].isdigit() + ep.noise.random() / 1000
"""
NIGHTLY = """
from marlaas.plugins import env

@env
async def {name}(ep):
    reply = await ep.ask(f"count {{ep.rng.randint(0, 999)}}")
    {{"six": 6}}["{number}"]
    return reply.text[:1].isdigit() + ep.noise.random() / 1000
"""


@pytest.fixture(params=[(80, 24), (120, 36), (200, 50)], ids=lambda size: "{}x{}".format(*size))
def size(request: pytest.FixtureRequest) -> Size:
    """Columns and rows."""
    columns, rows = request.param
    return columns, rows


def looking(lab: Lab, size: Size) -> AbstractContextManager[Terminal]:
    """The application on the lab's home."""
    return terminal(lab.home, columns=size[0], rows=size[1])


def find(screen: Terminal, name: str) -> None:
    """In the queue: the cursor on a task, or on a sweep."""
    screen.until("/ filter")
    screen.press("/")
    screen.until("esc clear filter")
    screen.press(f"{name}\r")
    screen.until_like(r"\d of \d")
    screen.until("palette", "/ filter")


def leave(screen: Terminal) -> None:
    """Quit."""
    screen.press("q")
    assert screen.end() == 0


def edits(lab: Lab, monkeypatch: pytest.MonkeyPatch, plugin: str, *texts: str) -> None:
    """``EDITOR`` is somebody who saves these texts of a plugin, one each time that it opens."""
    folder = lab.home.root / "edits"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{plugin}-{number}").write_text(text)
    script = folder.with_name("editor")
    script.write_text(EDITOR.format(python=sys.executable, edits=str(folder)))
    script.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(script))


def test_a_reward_that_stays_flat(lab: Lab, size: Size) -> None:
    (lab.home.plugins / "solved.py").write_text(SOLVED)
    served(lab, "solved/solved", "ready")
    name = f"flat {size[0]}"
    lab.submit(name, "solved", steps=60)
    with looking(lab, size) as screen:
        find(screen, name)
        screen.until("‖ paused", "it is solved", "Make it harder", "⏎ open")
        screen.press("\r")
        screen.until("All 8 rewards were 1.00: it is solved.", "no signal", "100 %")
        leave(screen)


def test_an_engine_that_was_killed(lab: Lab, size: Size) -> None:
    task = lab.submit(f"killed {size[0]}", steps=4000, train={"patience": 4000})
    lab.until(task, 1)
    with looking(lab, size) as screen:
        find(screen, f"killed {size[0]}")
        screen.until("● running", "engine: ● alive")
        lab.kill_engine()
        screen.until("engine: ✗ down", "S starts one", "○ waiting")
        assert "● running" not in screen.text()
        step = lab.row(task).step
        screen.press("S")
        screen.until("engine: ● alive", "● running")
        assert lab.until(task, step + 2).state == "running"
        screen.press("x")
        screen.until("Yes (y)")
        screen.press("y")
        screen.until("cancelled")
        leave(screen)


def test_the_best_of_a_sweep(lab: Lab, size: Size) -> None:
    name = f"sweep {size[0]}"
    rates = [1e-5, 1e-3, 3e-3]
    path = lab.home.root / "sweep.toml"
    path.write_text(
        f'tenant = "lab"\nname = "{name}"\nenvironment = "arithmetic"\nsteps = 24\n'
        f"[train]\ngroups_per_step = 4\ngroup_size = 8\nlearning_rate = {rates}\n"
        "[sampling]\nmax_tokens = 8\n[eval]\nprompts = 32\nevery = 8\n"
    )
    lab.marlaas("submit", str(path))
    lab.marlaas("wait", "--family", name)
    with looking(lab, size) as screen:
        find(screen, name)
        best = int(screen.until_like(r"best: task (\d+)")[1])
        screen.until("⏎ open")
        screen.press("\r")
        screen.until("▾ sweep")
        seen = {0}
        while best not in seen:
            screen.press("j")
            others = "|".join(map(str, seen))
            seen.add(int(screen.until_like(rf"\n (?!(?:{others}) )(\d+) lab / sweep")[1]))
        screen.press("\r")
        screen.until(f"2 task {best}", "✓ done")
        leave(screen)


def test_why_an_episode_failed(lab: Lab, size: Size) -> None:
    (lab.home.plugins / "fragile.py").write_text(FRAGILE)
    served(lab, "fragile/fragile", "ready")
    name = f"failing {size[0]}"
    task = lab.submit(name, "fragile", steps=12)
    lab.marlaas("wait", str(task))
    with looking(lab, size) as screen:
        find(screen, name)
        screen.until("⏎ open", "2 of 8 episodes failed")
        screen.press("\r")
        screen.until("t rollouts")
        screen.press("t")
        screen.until("all steps", "!", "? help")
        screen.press("?")
        screen.until("failures only")
        screen.press("?")
        screen.until("all steps", "⏎ open")
        screen.press("f")
        screen.until("steps with failures")
        screen.press("\r")
        screen.until("! error", "prompt 3")
        screen.press("\r")
        screen.until("with failures", "error")
        screen.press("\r")
        screen.until("fragile.py, line 8: ValueError: no sign in the reply")
        leave(screen)


def test_an_adapter_used_elsewhere(lab: Lab, size: Size, tmp_path: Path) -> None:
    name = f"taken {size[0]}"
    task = lab.submit(name, steps=2)
    lab.marlaas("wait", str(task))
    folder = tmp_path / "mine"
    with looking(lab, size) as screen:
        find(screen, name)
        screen.until("⏎ open")
        screen.press("5")
        screen.until("e export", f"task-{task}/")
        screen.press("e")
        screen.until(f"Export version 2 of task {task}", "PEFT (enter)")
        screen.press(f"\x15{folder}\r")
        screen.until("how to use", "Use this adapter", "PeftModel")
        screen.press("q")
        screen.until("USE.md says how", "e export", "palette")
        leave(screen)
    said = (folder / "USE.md").read_text()
    assert "PeftModel.from_pretrained" in said and str(folder) in said
    assert (folder / "adapter_model.safetensors").is_file()


def test_the_machine_is_given_back(lab: Lab, size: Size) -> None:
    task = lab.submit(f"gives way {size[0]}", steps=4000, train={"patience": 4000})
    lab.until(task, 1)
    with looking(lab, size) as screen:
        screen.until("6 engine")
        screen.press("6")
        screen.until("F yield")
        screen.press("F")
        screen.until("Yield the machine?", "2h")
        screen.press("\r")
        screen.until("yielded until", "The machine is free of workers", "B takes it back")
        assert not lab.worker_pids("marlaas.engine.workers.host")
        step = lab.row(task).step
        screen.press("B")
        screen.until("engine: ● alive")
        assert lab.until(task, step + 1).state == "running"
        leave(screen)
    lab.marlaas("cancel", str(task))


def test_what_drift_means(lab: Lab, size: Size) -> None:
    with looking(lab, size) as screen:
        screen.until("? help")
        screen.press("?")
        screen.until("w explains words and metrics")
        screen.press("w")
        screen.until("what words and metrics mean", "/ find")
        screen.press("/")
        screen.until("esc clear filter")
        screen.press("drift")
        screen.until("drift (metric of a step)", "Mean difference of log-probabilities", "healthy")
        screen.press("\r")
        screen.until("esc close")
        screen.press("q")
        screen.until("palette")
        leave(screen)
