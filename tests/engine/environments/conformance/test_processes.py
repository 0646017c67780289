"""Checks of real plugins in real processes, each with one defect; and the checks that follow a promotion."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from marlaas.engine.environments.conformance import subject as subjects
from marlaas.engine.environments.conformance.check import Background, Scope, check
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS

from ..conftest import ECHO, World, a_spec, echoing

pytestmark = pytest.mark.processes

SCOPE = Scope(prompts=8, seconds=20.0)

DEFECTS = """
import os, random, time
from marlaas.plugins import env

def number(ep):
    return ep.rng.randrange(10**9)

@env
async def clock(ep):
    "Its prompt is another every time."
    return (await ep.ask(f"{time.time_ns()}")).text == "right"

@env
async def shuffled(ep):
    "So is its, by the module random."
    return (await ep.ask(f"{random.random()}")).text == "right"

@env
async def leaking(ep):
    shifted = random.Random(ep.index + (ep.split == "eval"))
    return (await ep.ask(f"{shifted.random()}")).text == "right"

@env
async def fragile(ep):
    reply = await ep.ask(f"{number(ep)}")
    return int(reply.text) == 0 and 0.1

@env
async def generous(ep):
    return bool((await ep.ask(f"{number(ep)}")).text)

@env
async def deadly(ep):
    if (await ep.ask(f"{number(ep)}")).text == "None":
        os._exit(3)
    return 0.0

@env
async def infinite(ep):
    return float("inf") if (await ep.ask(f"{number(ep)}")).text == "1e999" else 0.0

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
"""


async def errors(world: World, name: str) -> dict[str, str]:
    """Messages of errors by check."""
    found = await check(world.service, name, scope=SCOPE)
    return {finding.check: finding.message for finding in found if finding.level == "error"}


async def test_each_defect_is_found_and_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "MOST_TURNS", 20)
    world.save("bad.py", DEFECTS)
    await world.service.start()
    names = ("clock", "shuffled", "leaking", "fragile", "deadly", "infinite", "endless", "grinding", "needy")
    found = dict(zip(names, await asyncio.gather(*(errors(world, name) for name in names)), strict=True))
    assert {name: set(messages) for name, messages in found.items()} == {
        "clock": {"determinism"},
        "shuffled": {"determinism"},
        "leaking": {"leaks"},
        "fragile": {"junk"},
        "deadly": {"junk"},
        "infinite": {"junk"},
        "endless": {"junk"},
        "grinding": {"junk"},
        "needy": {"config"},
    }
    assert "train instance 0 changes when it is drawn again" in found["clock"]["determinism"]
    assert "The eval split is the train split, moved by 1" in found["leaking"]["leaks"]
    assert "it fails: bad.py:26: ValueError: invalid literal for int() with base 10: ''" in found["fragile"]["junk"]
    assert "Given the answer 'None', it fails: its process ended by itself with code 3" in found["deadly"]["junk"]
    assert (
        "Given the answer '1e999', it fails: bad.py:39: ValueError: the reward must be finite, not inf"
        in found["infinite"]["junk"]
    )
    assert "it asks more than" in found["endless"]["junk"]
    assert "Given a reply of 20,000 characters, it ends too late: " in found["grinding"]["junk"]
    assert found["needy"]["config"].startswith("bad/needy needs 'depth' (int): give it as in")


async def test_a_scorer_that_pays_for_anything(world: World) -> None:
    world.save("bad.py", DEFECTS)
    await world.service.start()
    findings = await check(world.service, "generous", scope=Scope(prompts=20))
    (finding,) = [finding for finding in findings if finding.level == "error"]
    assert finding.message.startswith("The answer '0' scores 1.00 on average over 20 instances: rewards can be had")


async def test_what_a_check_does_to_a_process_concerns_nobody(world: World) -> None:
    world.save("bad.py", DEFECTS)
    await world.service.start()
    before = world.service.processes()
    await check(world.service, "deadly", scope=SCOPE)
    assert world.service.processes() == before
    assert [event.kind for event in world.told] == ["loaded"]
    assert {pid for _, pid in before} == set(world.pids())


async def test_the_bundled_environments_are_sound(tmp_path: Path) -> None:
    world = World(BUNDLED_PLUGINS, tmp_path)
    try:
        await world.service.start()
        names = [info.name for info in world.service.infos()]
        found = await asyncio.gather(*(check(world.service, name, scope=Scope(prompts=16)) for name in names))
        for findings in found:
            assert {finding.level for finding in findings} == {"note"}, findings
    finally:
        await world.service.stop()


async def test_a_broken_plugin_is_a_finding_with_its_place(world: World) -> None:
    world.save("broken.py", "from marlaas.plugins import env\n\ndef nothing(:\n")
    await world.service.start()
    assert await check(world.service, "broken") == [
        Finding("load", "error", "broken does not load: broken.py:3: SyntaxError: invalid syntax.")
    ]
    with pytest.raises(EnvironmentMissing):
        await check(world.service, "nobody")


async def test_settings_that_do_not_fit(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    (finding,) = await check(world.service, "echo", {"word": 3})
    assert (finding.check, finding.level) == ("config", "error") and "'word' of echo must be a text" in finding.message


async def test_checks_get_what_others_leave(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def play(self: subjects.Subject, *args: object) -> object:
        outcome = await real(self, *args)  # type: ignore[arg-type]
        seen.extend(os.getpriority(os.PRIO_PROCESS, pid) for pid in world.pids())
        return outcome

    real = subjects.Subject.play
    monkeypatch.setattr(subjects.Subject, "play", play)
    world.save("echo.py", ECHO)
    await world.service.start()
    await check(world.service, "echo", scope=Scope(prompts=2))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(seen) == {
        min(own + 5, 19),
        subjects.NICENESS,
    }  # the process that serves, and the one that is checked


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


async def test_what_is_promoted_is_checked_once_in_the_background(world: World) -> None:
    world.save("echo.py", ECHO)
    world.save("needy.py", "from marlaas.plugins import env\n@env\nasync def needy(ep, depth: int):\n    return 1\n")
    await world.service.start()
    kept = Kept()
    checks = Background(world.service, SCOPE, kept.knows, kept.add, settled=0.0)
    try:
        for plugin in ("echo", "needy", "gone"):
            checks.changed(plugin)
        name, version, findings = await kept.found.get()
        assert (name, version) == ("echo/echo", world.service.resolve("echo").version)
        assert "variety" in {finding.check for finding in findings if finding.level == "warning"}
        name, _, findings = await kept.found.get()
        assert name == "needy/needy" and [finding.level for finding in findings] == ["note"]
        checks.changed("echo")  # known by now
        world.save("echo.py", ECHO.replace("ep.ask(word)", "ep.ask(f'{ep.rng.random()}')"))
        await world.until("loaded", "echo")
        await world.until("loaded", "echo")
        checks.changed("echo")
        name, newer, findings = await kept.found.get()
        assert newer != version and kept.found.empty()
        assert not [finding for finding in findings if finding.level == "warning"]
    finally:
        await checks.stop()


async def test_a_newer_version_ends_the_check_of_the_older(world: World) -> None:
    world.save("echo.py", "import asyncio\n" + ECHO.replace("reply =", "await asyncio.sleep(0.2)\n    reply ="))
    await world.service.start()
    kept = Kept()
    checks = Background(world.service, Scope(prompts=64, seconds=60.0), kept.knows, kept.add, settled=0.0)
    try:
        checks.changed("echo")
        while len(world.pids()) < 2:  # its check has begun
            await asyncio.sleep(0.01)
        world.save("echo.py", ECHO)
        await world.until("loaded", "echo")
        await world.until("loaded", "echo")
        checks.changed("echo")
        _, version, _ = await kept.found.get()
        assert version == world.service.resolve("echo").version
    finally:
        await checks.stop()


async def test_spared_folders_are_not_checked(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    kept = Kept()
    checks = Background(world.service, SCOPE, kept.knows, kept.add, spare=(world.folder,), settled=0.0)
    checks.changed("echo")
    while checks.busy:
        await asyncio.sleep(0)
    assert not kept.known
    await checks.stop()


async def test_of_a_version_that_rests_nothing_is_found_for_good(world: World) -> None:
    world.save("dies.py", ECHO.replace("return reply.text == word", "import os; os._exit(3)").replace("echo", "dies"))
    await world.service.start()
    with await world.service.bind("dies") as lease:
        while lease.rest is None:
            await world.service.play(lease, a_spec(), echoing)
    kept = Kept()
    checks = Background(world.service, SCOPE, kept.knows, kept.add, settled=0.0)
    checks.changed("dies")
    while checks.busy:
        await asyncio.sleep(0)
    assert not kept.known, "its state says that it rests; an hour later it may do well"
    await checks.stop()
