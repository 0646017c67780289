"""All checks together, without processes and with real ones that have one defect each."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from marlaas.engine.environments.conformance import subject
from marlaas.engine.environments.conformance.check import Background, Scope, check
from marlaas.engine.environments.conformance.finding import LEVELS, Finding
from marlaas.engine.environments.conformance.subject import NICENESS, Subject
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS

from .conftest import ECHO, World, a_spec, echoing, line_of

BRIEF = Scope(prompts=8, seconds=60.0)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that are drawn again, and that get odd replies."""
    monkeypatch.setattr(subject, "INSTANCES", 2)
    monkeypatch.setattr(subject, "JUNK_INSTANCES", 1)


DEFECTS = """
import asyncio, os, random, time
from marlaas.plugins import env

def number(ep):
    return ep.rng.randrange(10**9)

@env
async def clock(ep):
    "Its prompt is another every time."
    return (await ep.ask(f"{time.time_ns()}")).text == "right"

@env
async def leaking(ep):
    shifted = random.Random(ep.index + (ep.split == "eval"))
    return (await ep.ask(f"{shifted.random()}")).text == "right"

@env
async def fragile(ep):
    reply = await ep.ask(f"{number(ep)}")
    return int(reply.text) == 0 and 0.1

@env
async def deadly(ep):
    if (await ep.ask(f"{number(ep)}")).text == "None":
        os._exit(3)
    return 0.0

@env
async def endless(ep):
    while (await ep.ask(f"{number(ep)}")).text != "yes":
        pass
    return 0.0

@env(timeout=0.2)
def grinding(ep):
    if len(ep.ask(f"{number(ep)}").text) > 10_000:
        while True:
            time.sleep(0.001)
    return 0.0

@env
async def needy(ep, depth: int):
    return (await ep.ask(f"{number(ep)} {depth}")).text == "right"

asked = {}

@env
async def counting(ep):
    "Its sequence begins again with its process."
    return (await ep.ask(f"task {asked.setdefault((ep.split, ep.index), len(asked))}")).text == "right"

@env
async def noisy(ep):
    "Members of a group are asked different things."
    return (await ep.ask(f"{'x' * 40} {ep.noise.randrange(10**9)}")).text == "right"

@env
async def sound(ep):
    a, b = (ep.rng.randrange(10**6) for _ in "ab")
    return (await ep.ask(f"{a}+{b}=")).text == str(a + b)

@env
async def mention(ep):
    wanted = ep.rng.randrange(1000)
    return str(wanted) in (await ep.ask(f"Repeat {wanted}")).text

@env
async def late(ep):
    await asyncio.sleep(0.05)
    return (await ep.ask(f"{number(ep)}")).text == "right"
"""


@pytest.mark.processes
async def test_each_defect_is_found_and_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_TURNS", 20)
    await world.serve(bad=DEFECTS)
    before = world.service.processes()
    names = ("clock", "leaking", "fragile", "deadly", "endless", "grinding", "needy", "counting", "noisy", "sound")
    checked = dict(
        zip(names, await asyncio.gather(*(check(world.service, name, scope=BRIEF) for name in names)), strict=True)
    )
    found = {name: {one.check: one.message for one in checked[name] if one.level == "error"} for name in names}
    assert {name: set(messages) for name, messages in found.items()} == {
        "clock": {"determinism"},
        "leaking": {"leaks"},
        "fragile": {"junk"},
        "deadly": {"junk"},
        "endless": {"junk"},
        "grinding": {"junk"},
        "needy": {"config"},
        "counting": {"determinism"},
        "noisy": {"determinism"},
        "sound": set(),
    }
    assert {one.level for one in checked["sound"]} == {"note"}
    assert {one.check for one in checked["sound"]} == {
        *("determinism", "leaks", "junk", "baseline", "rewards", "latency"),
    }
    for findings in checked.values():
        assert [one.level for one in findings] == sorted((one.level for one in findings), key=LEVELS.index)
    assert "changes in another process: 'task " in found["counting"]["determinism"]
    assert "differs between the members of a group: '…xxxxxxx " in found["noisy"]["determinism"]
    assert "ep.noise is for what happens after the first prompt" in found["noisy"]["determinism"]
    assert "train instance 0 changes when it is drawn again" in found["clock"]["determinism"]
    assert "The eval split is the train split, moved by 1" in found["leaking"]["leaks"]
    line = line_of(DEFECTS, "int(reply.text) == 0")
    assert f"it fails: bad.py:{line}: ValueError: invalid literal for int()" in found["fragile"]["junk"]
    assert "Given the answer 'None', it fails: its process ended by itself with code 3" in found["deadly"]["junk"]
    assert "it asks more than" in found["endless"]["junk"]
    assert "Given a reply of 20,000 characters, it ends too late: " in found["grinding"]["junk"]
    assert found["needy"]["config"].startswith("bad/needy needs 'depth' (int): give it as in")
    assert world.service.processes() == before and {pid for _, pid in before} == set(world.pids())
    assert [event.kind for event in world.told] == ["loaded"], "a check concerns nobody else"


@pytest.mark.processes
async def test_slow_environments_and_those_that_take_a_mention(world: World) -> None:
    await world.serve(bad=DEFECTS)
    (baseline,) = [one for one in await check(world.service, "mention", scope=BRIEF) if one.check == "baseline"]
    assert baseline.message.startswith("The list of all numbers to 999 scores 1.00 on average")
    findings = await check(world.service, "late", scope=Scope(prompts=20, seconds=0.3))
    messages = {one.check: one.message for one in findings}
    assert messages["time"].startswith("Only ") and " of 40 instances were drawn" in messages["time"]


@pytest.mark.slow
@pytest.mark.processes
async def test_the_bundled_environments_are_sound(tmp_path: Path) -> None:
    world = World(BUNDLED_PLUGINS, tmp_path)
    try:
        await world.service.start()
        names = [info.name for info in world.service.infos()]
        found = await asyncio.gather(*(check(world.service, name, scope=Scope(prompts=8)) for name in names))
        for findings in found:
            assert {finding.level for finding in findings} == {"note"}, findings
    finally:
        await world.service.stop()


@pytest.mark.processes
async def test_a_broken_plugin_and_wrong_parameters_are_findings(world: World) -> None:
    await world.serve(echo=ECHO, broken="from marlaas.plugins import env\n\ndef nothing(:\n")
    assert await check(world.service, "broken") == [
        Finding("load", "error", "broken does not load: broken.py:3: SyntaxError: invalid syntax.")
    ]
    with pytest.raises(EnvironmentMissing):
        await check(world.service, "nobody")
    (finding,) = await check(world.service, "echo", {"word": 3})
    assert (finding.check, finding.level) == ("config", "error") and "'word' of echo must be a text" in finding.message


@pytest.mark.processes
async def test_checks_get_what_others_leave(world: World) -> None:
    await world.serve(echo=ECHO)
    (serving,) = world.pids()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with await world.service.bind("echo") as lease:
        async with Subject(lease) as checks:
            await checks.play(a_spec(), echoing)
            (checked,) = set(world.pids()) - {serving}
            assert os.getpriority(os.PRIO_PROCESS, checked) == NICENESS
            assert os.getpriority(os.PRIO_PROCESS, serving) == min(own + 5, 19)


class Kept:
    """Remembers what checks found."""

    def __init__(self) -> None:
        self.found: asyncio.Queue[tuple[str, str, list[Finding]]] = asyncio.Queue()
        self.known: set[tuple[str, str]] = set()

    def add(self, name: str, version: str, findings: list[Finding]) -> None:
        self.known.add((name, version))
        self.found.put_nowait((name, version, findings))

    def knows(self, name: str, version: str) -> bool:
        return (name, version) in self.known


@pytest.mark.processes
async def test_what_is_promoted_is_checked_once_in_the_background(world: World) -> None:
    await world.serve(
        echo=ECHO, needy="from marlaas.plugins import env\n@env\nasync def needy(ep, depth: int):\n    return 1\n"
    )
    kept = Kept()
    spared = Background(world.service, BRIEF, kept.knows, kept.add, spare=(world.folder,), settled=0.0)
    spared.changed("echo")
    while spared.busy:
        await asyncio.sleep(0)
    assert not kept.known
    await spared.stop()
    checks = Background(world.service, Scope(2), kept.knows, kept.add, settled=0.0)
    try:
        for plugin in ("echo", "needy", "gone"):
            checks.changed(plugin)
        name, version, findings = await kept.found.get()
        assert (name, version) == ("echo/echo", world.service.resolve("echo").version)
        assert "determinism" in {finding.check for finding in findings}
        name, _, findings = await kept.found.get()
        assert name == "needy/needy" and [finding.level for finding in findings] == ["note"]
        checks.changed("echo")  # known by now
        await world.edit("echo", ECHO.replace("ep.ask(word)", "ep.ask(f'{ep.rng.random()}')"))
        checks.changed("echo")
        name, newer, findings = await kept.found.get()
        assert newer != version and kept.found.empty()
        assert not [finding for finding in findings if finding.level == "warning"]
    finally:
        await checks.stop()


@pytest.mark.processes
async def test_a_newer_version_ends_the_check_of_the_older(world: World) -> None:
    await world.serve(echo="import asyncio\n" + ECHO.replace("reply =", "await asyncio.sleep(0.2)\n    reply ="))
    kept = Kept()
    checks = Background(world.service, Scope(2), kept.knows, kept.add, settled=0.0)
    try:
        checks.changed("echo")
        while len(world.pids()) < 2:  # its check has begun
            await asyncio.sleep(0.01)
        await world.edit("echo", ECHO)
        checks.changed("echo")
        _, version, _ = await kept.found.get()
        assert version == world.service.resolve("echo").version
    finally:
        await checks.stop()


@pytest.mark.processes
async def test_of_a_version_that_rests_nothing_is_found_for_good(world: World) -> None:
    await world.serve(dies=ECHO.replace("return reply.text == word", "import os; os._exit(3)").replace("echo", "dies"))
    with await world.service.bind("dies") as lease:
        while lease.rest is None:
            await world.service.play(lease, a_spec(), echoing)
    kept = Kept()
    checks = Background(world.service, BRIEF, kept.knows, kept.add, settled=0.0)
    checks.changed("dies")
    while checks.busy:
        await asyncio.sleep(0)
    assert not kept.known, "its state says that it rests; an hour later it may do well"
    await checks.stop()
