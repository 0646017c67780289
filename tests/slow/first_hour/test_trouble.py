"""A first hour, its troubles: a flat reward, a plugin that broke overnight, a killed engine, an episode that failed."""

from __future__ import annotations

import pytest

from ...end_to_end.conftest import Lab, served
from .person import Size, edits, person

pytestmark = [pytest.mark.slow, pytest.mark.first_hour, pytest.mark.processes, pytest.mark.timeout(3600)]

LONG = 40_000
"""Steps of a task that no test sees the end of."""
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


def test_a_reward_that_stays_flat(lab: Lab, size: Size) -> None:
    (lab.home.plugins / "solved.py").write_text(SOLVED)
    served(lab, "solved/solved", "ready")
    name = f"flat {size[0]}"
    lab.submit(name, "solved", steps=60)
    with person(lab.home, size) as me:
        me.finds(name)
        me.sees("‖ paused", "it is solved", "Make it harder")
        me.presses("enter", "open")
        me.sees("All 8 rewards were 1.00: it is solved.", "no signal", "100 %")
        me.leaves()


def test_a_plugin_that_broke_overnight(lab: Lab, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task waits with file, line and cause; the one beside it went on. Mended with ``E``, it goes on by itself."""
    name = f"nightly{size[0]}"
    path = lab.home.plugins / f"{name}.py"
    sound, broken = (NIGHTLY.format(name=name, number=number) for number in ("six", "seven"))
    path.write_text(sound)
    first = served(lab, f"{name}/{name}", "ready")
    edits(lab, monkeypatch, name, sound)
    task = lab.submit(f"at night {size[0]}", name, steps=LONG, train={"patience": LONG})
    lab.until(task, 2)
    path.write_text(broken)
    served(lab, f"{name}/{name}", "failing", other_than=first)
    lab.marlaas("wait", str(lab.submit(f"beside {size[0]}", steps=2)))
    with person(lab.home, size) as me:
        me.finds(f"at night {size[0]}")
        me.sees("■ blocked", "KeyError: 'seven'", f"{name}.py:7")
        me.presses("enter", "open")
        me.sees(f"2 task {task}", "KeyError: 'seven'")
        step = lab.row(task).step
        me.presses("E", "opens the file at this line")
        me.sees("● running")
        assert lab.until(task, step + 2).state == "running"
        me.leaves()
    lab.marlaas("cancel", str(task))


def test_an_engine_that_was_killed(lab: Lab, size: Size) -> None:
    name = f"killed {size[0]}"
    task = lab.submit(name, steps=LONG, train={"patience": LONG})
    lab.until(task, 1)
    with person(lab.home, size) as me:
        me.finds(name)
        me.sees("● running", "engine: ● alive")
        lab.kill_engine()
        me.sees("engine: ✗ down", "○ waiting")
        me.sees_no_more("● running")
        step = lab.row(task).step
        me.presses("S", "starts one")
        me.sees("engine: ● alive", "● running")
        assert lab.until(task, step + 2).state == "running"
        me.presses("x", "cancel")
        me.presses("y", "yes")
        me.sees("cancelled")
        me.leaves()


def test_why_an_episode_failed(lab: Lab, size: Size) -> None:
    (lab.home.plugins / "fragile.py").write_text(FRAGILE)
    served(lab, "fragile/fragile", "ready")
    name = f"failing {size[0]}"
    task = lab.submit(name, "fragile", steps=12)
    lab.marlaas("wait", str(task))
    with person(lab.home, size) as me:
        me.finds(name)
        me.sees("2 of 8 episodes failed")
        me.presses("enter", "open")
        me.presses("t", "rollouts")
        me.sees("all steps", "!")
        me.learns("f", "failures only")
        me.presses("f", "failures only")
        me.sees("steps with failures")
        me.presses("enter", "open")
        me.sees("! error", "prompt 3")
        me.presses("enter", "open")
        me.sees("with failures", "error")
        me.presses("enter", "open")
        me.sees("fragile.py, line 8: ValueError: no sign in the reply")
        me.leaves()
