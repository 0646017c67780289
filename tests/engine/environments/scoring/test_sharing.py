"""Real scoring processes that several versions share: each finds what is its own, and answers for itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from marlaas.engine.environments.process.launch import obstacle
from marlaas.engine.environments.protocol import EpisodeOutcome

from ..conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

SET = """
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
from marlaas.plugins import Score, env
from . import helper
import flat

@env
async def {name}(ep):
    ep.task = None
    await ep.ask("x")

@{name}.score
def score(task, transcript):
    from . import late
    import flat as again
    assert again is flat and late.helper is helper and sys.modules[__name__].score.__globals__ is globals()
    helper.calls += 1
    print("printed by {name}")
    return Score(helper.VALUE, flat=flat.VALUE, late=late.VALUE, calls=helper.calls, process=os.getpid())
"""
ALONE = """
# /// script
# [tool.marlaas]
# shared_scoring = false
# ///
"""


def save_set(world: World, name: str, value: float) -> None:
    """A plugin of several modules, whose names another one has, too."""
    files = {
        "helper.py": f"VALUE, calls = {value}, 0",
        "late.py": f"from . import helper\nVALUE = helper.VALUE + {value}",
        "flat.py": f"VALUE = 100 + {value}",
        "__init__.py": SET.format(name=name),
    }
    folder = world.folder / name
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)


def scorer(name: str, body: str) -> str:
    return f"""
import os, signal, tempfile, threading, time
from marlaas.plugins import Score, env

@env
async def {name}(ep):
    ep.task = None
    await ep.ask("x")

@{name}.score
def score(task, transcript):
    {body}
    return Score(1.0, process=os.getpid())
"""


async def score(world: World, name: str, version: str | None = None) -> EpisodeOutcome:
    with await world.service.bind(name, version) as lease:
        return await world.service.play(lease, a_spec(), echoing)


def told(outcome: EpisodeOutcome) -> tuple[float, ...]:
    assert outcome.status == "ok", outcome
    return (*outcome.rewards.values(), *(outcome.parts[part] for part in ("flat", "late", "calls")))


async def test_modules_of_the_same_name_do_not_mix(world: World) -> None:
    for value, name in enumerate(("a", "b"), 1):
        save_set(world, name, value)
    await world.service.start()
    outcomes = [await score(world, name) for name in ("a", "b", "a", "b")]
    assert [told(one) for one in outcomes] == [
        (1.0, 101.0, 2.0, 1.0),
        (2.0, 102.0, 4.0, 1.0),
        (1.0, 101.0, 2.0, 2.0),
        (2.0, 102.0, 4.0, 2.0),
    ]
    assert len({one.parts["process"] for one in outcomes}) == 1
    for name in ("a", "b"):
        assert (world.scratch / "logs" / f"{name}.log").read_text() == f"printed by {name}\n" * 2


async def test_versions_of_one_plugin_do_not_mix(world: World) -> None:
    save_set(world, "a", 1)
    await world.service.start()
    with await world.service.bind("a") as lease:
        old = await world.service.play(lease, a_spec(), echoing)
        await world.until("loaded", "a")
        (world.folder / "a" / "helper.py").write_text("VALUE, calls = 7, 0")
        await world.until("loaded", "a")
        new = await score(world, "a")
        again = await world.service.play(lease, a_spec(), echoing)
        assert [told(one) for one in (old, new, again)] == [
            (1.0, 101.0, 2.0, 1.0),
            (7.0, 101.0, 8.0, 1.0),
            (1.0, 101.0, 2.0, 2.0),
        ]
        assert len({one.parts["process"] for one in (old, new, again)}) == 1
    assert told(await score(world, "a"))[-1] == 2.0, "the newer version lives on where the older one ended"


async def test_a_version_that_is_reloaded_is_imported_anew(world: World) -> None:
    save_set(world, "a", 1)
    await world.service.start()
    assert [told(await score(world, "a"))[-1] for _ in range(2)] == [1.0, 2.0]
    await world.service.reload("a")
    assert told(await score(world, "a"))[-1] == 1.0


async def test_who_kills_a_process_is_known(world: World) -> None:
    world.save("killer.py", scorer("killer", "os._exit(3)"))
    world.save("other.py", scorer("other", "pass"))
    await world.service.start()
    first = await score(world, "other")
    killed = await score(world, "killer")
    assert killed.status == "error" and killed.failure is not None and "by itself with code 3" in killed.failure.message
    after = await score(world, "other")
    assert after.status == "ok" and after.parts != first.parts
    dead = [event.plugin for event in world.told if event.kind == "died"]
    assert dead == ["killer"] * 2, "once beside others, and once by itself"


SURROUNDINGS = """\
os.environ["LEFT"] = "here"
    os.chdir("/")
    signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
    signal.setitimer(signal.ITIMER_REAL, 0.2)"""
CLEAN = """\
assert "LEFT" not in os.environ and os.getcwd() == os.environ["TMPDIR"] == tempfile.gettempdir()
    assert os.getcwd().endswith("/work/clean"), os.getcwd()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]"""


async def test_surroundings_come_and_go_with_a_version(world: World) -> None:
    world.save("messy.py", scorer("messy", SURROUNDINGS))
    world.save("clean.py", scorer("clean", CLEAN))
    await world.service.start()
    outcomes = [await score(world, name) for name in ("clean", "messy", "clean", "messy", "clean")]
    assert [one.failure for one in outcomes] == [None] * 5
    assert len({one.parts["process"] for one in outcomes}) == 1


async def test_a_thread_that_is_left_behind_disturbs_nobody(world: World) -> None:
    world.save("leaves.py", scorer("leaves", "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"))
    world.save("other.py", scorer("other", "pass"))
    await world.service.start()
    outcomes = [await score(world, name) for name in ("leaves", "other", "leaves", "other", "leaves")]
    _, other, leaves, *again = (one.parts["process"] for one in outcomes)
    assert other != leaves and again == [other, leaves]


async def test_what_clashes_with_others_is_scored_alone(world: World) -> None:
    """A library's table refuses the second of two equal names: that is no fault of the version that comes second."""
    clashing = "import json\nassert not hasattr(json, 'taken'), 'it is taken'\njson.taken = True\n"
    for name in ("a", "b"):
        world.save(f"{name}.py", clashing + scorer(name, "pass"))
    await world.service.start()
    outcomes = [await score(world, name) for name in ("a", "b", "b", "a")]
    assert [one.failure for one in outcomes] == [None] * 4
    assert len({one.parts["process"] for one in outcomes}) == 2


async def test_an_author_may_refuse_to_share(world: World) -> None:
    world.save("alone.py", ALONE + scorer("alone", "pass"))
    world.save("other.py", scorer("other", "pass"))
    await world.service.start()
    outcomes = [await score(world, name) for name in ("other", "alone", "other", "alone")]
    other, alone = (outcomes[place].parts["process"] for place in (0, 1))
    assert other != alone and [one.parts["process"] for one in outcomes[2:]] == [other, alone]


@pytest.mark.skipif(bool(obstacle()), reason="no process can be confined here")
async def test_a_confined_version_shares_with_nobody(world: World) -> None:
    """It could not read the others' files; and they could read its own."""
    confined = ALONE.replace("shared_scoring = false", "network = false")
    for name in ("a", "b"):
        world.save(f"{name}.py", confined + scorer(name, "assert not os.path.exists('/root/x')"))
    await world.service.start()
    pids = [world.service.processes() for name in ("a", "b") if (await score(world, name)).status == "ok"][-1]
    scoring = set(pids) - {(name, pid) for name in ("a", "b") for pid in await playing(world, name)}
    assert len(scoring) == 2


async def playing(world: World, name: str) -> list[int]:
    with await world.service.bind(name) as lease:
        return [child.pid for child in lease.serving.children]


async def test_the_time_of_an_import_is_not_the_scores(world: World, tmp_path: Path) -> None:
    """A heavy library is imported within the time of imports, not within ``score_timeout``."""
    marker = tmp_path / "imports"
    text = scorer("heavy", "pass").replace("@env\n", "@env(score_timeout=0.2)\n")
    late = f"import time\nwith open({str(marker)!r}, 'a') as f: f.write('x')\nended = time.process_time() + 0.5\n"
    world.save("heavy.py", late + "while time.process_time() < ended: pass\n" + text)
    await world.service.start()
    await world.until("loaded", "heavy")
    assert (await score(world, "heavy")).status == "ok"
    assert len(marker.read_text()) == 2, "once to play, once to score"


async def test_all_processes_end_with_the_service(world: World) -> None:
    for name in ("a", "b"):
        world.save(f"{name}.py", scorer(name, "pass"))
    await world.service.start()
    await asyncio.gather(*(score(world, name) for name in ("a", "b")))
    await world.service.stop()
    while world.pids():
        await asyncio.sleep(0)
    assert os.path.isdir(world.scratch)
