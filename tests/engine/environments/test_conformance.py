"""All checks together, without processes and with real ones that have one defect each."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from marlaas.engine.environments.conformance import subject as subjects
from marlaas.engine.environments.conformance.check import Background, Scope, check, check_version
from marlaas.engine.environments.conformance.finding import LEVELS, Finding
from marlaas.engine.errors import BaseModelError, EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.plugins.messages import Ask

from .conftest import ECHO, World, a_spec, echoing

BRIEF = Scope(prompts=8, seconds=60.0)

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

asked = {}

@env
async def counting(ep):
    "Its sequence begins again with its process."
    return (await ep.ask(f"task {asked.setdefault((ep.split, ep.index), len(asked))}")).text == "right"

@env
async def noisy(ep):
    "Members of a group are asked different things."
    return (await ep.ask(f"{'x' * 40} {ep.noise.randrange(10**9)}")).text == "right"

limits = iter(range(5, 10**9))

@env
async def limited(ep):
    return (await ep.ask(f"{number(ep)}", max_tokens=next(limits))).text == "right"

@env
async def called(ep):
    def price(item: str):
        "Price of an item."
        raise AssertionError("it is never called with such arguments")
    reply = await ep.agent(tools=[price]).act(f"{number(ep)}", max_turns=2)
    return 0.0 if not reply.tool_calls else None

@env
async def mute(ep):
    if ep.index:
        raise ValueError("no")
    return (await ep.ask(f"{number(ep)}")).text == "right"

@env
async def sound(ep):
    a, b = (ep.rng.randrange(10**6) for _ in "ab")
    return (await ep.ask(f"{a}+{b}=")).text == str(a + b)

@env
async def thrown(ep):
    "Its rewards are drawn by the module random."
    await ep.ask(f"{number(ep)}")
    return random.random()

@env
async def mention(ep):
    wanted = ep.rng.randrange(1000)
    return str(wanted) in (await ep.ask(f"Repeat {wanted}")).text

table = asyncio.Lock()

@env
async def late(ep):
    async with table:
        await asyncio.sleep(0.1)
        return (await ep.ask(f"{number(ep)}")).text == "right"
"""


@pytest.mark.processes
async def test_each_defect_is_found_and_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "MOST_TURNS", 20)
    await world.serve(bad=DEFECTS)
    before = world.service.processes()
    names = [
        *("clock", "shuffled", "leaking", "fragile", "deadly", "infinite", "endless", "grinding", "needy"),
        *("counting", "noisy", "limited", "called", "mute", "sound", "thrown"),
    ]
    checked = dict(
        zip(names, await asyncio.gather(*(check(world.service, name, scope=BRIEF) for name in names)), strict=True)
    )
    found = {name: {one.check: one.message for one in checked[name] if one.level == "error"} for name in names}
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
        "counting": {"determinism"},
        "noisy": {"determinism"},
        "limited": {"determinism"},
        "called": {"junk"},
        "mute": {"instances"},
        "sound": set(),
        "thrown": set(),
    }
    assert {one.level for one in checked["sound"]} == {"note"}
    assert {one.check for one in checked["sound"]} == {
        *("determinism", "variety", "leaks", "lengths", "junk", "baseline", "rewards", "concurrency", "latency"),
    }
    for findings in checked.values():
        assert [one.level for one in findings] == sorted((one.level for one in findings), key=LEVELS.index)
    (thrown,) = [one.message for one in checked["thrown"] if one.level == "warning"]
    assert "the empty reply at train instance 0 earns " in thrown and "Draw what is random from ep.rng" in thrown
    assert "changes in another process: 'task " in found["counting"]["determinism"]
    assert "differs between the members of a group: '…xxxxxxx " in found["noisy"]["determinism"]
    assert "ep.noise is for what happens after the first prompt" in found["noisy"]["determinism"]
    assert "its tools, limits or agent differ" in found["limited"]["determinism"]
    assert "Given a tool call with a wrong argument, it fails: " in found["called"]["junk"]
    assert "train instance 0 changes when it is drawn again" in found["clock"]["determinism"]
    assert "The eval split is the train split, moved by 1" in found["leaking"]["leaks"]
    assert "it fails: bad.py:26: ValueError: invalid literal for int() with base 10: ''" in found["fragile"]["junk"]
    assert "Given the answer 'None', it fails: its process ended by itself with code 3" in found["deadly"]["junk"]
    assert (
        "Given the answer '1e999', it fails: bad.py:35: ValueError: the reward must be finite, not inf"
        in found["infinite"]["junk"]
    )
    assert "it asks more than" in found["endless"]["junk"]
    assert "Given a reply of 20,000 characters, it ends too late: " in found["grinding"]["junk"]
    assert found["needy"]["config"].startswith("bad/needy needs 'depth' (int): give it as in")
    assert world.service.processes() == before and {pid for _, pid in before} == set(world.pids())
    assert [event.kind for event in world.told] == ["loaded"], "a check concerns nobody else"


class Characters:
    """A base that measures texts, and refuses some."""

    context = 20

    async def tokens(self, ask: Ask) -> int:
        if ask.messages[0].content.startswith("Repeat 1"):
            raise BaseModelError("The template refuses it.")
        return len(ask.messages[0].content)


@pytest.mark.processes
async def test_scorers_that_take_a_mention_and_prompts_too_odd(world: World) -> None:
    await world.serve(bad=DEFECTS)
    findings = await check(world.service, "mention", scope=Scope(prompts=20, ruler=Characters()))
    (baseline,) = [one for one in findings if one.check == "baseline"]
    assert baseline.level == "error"
    assert baseline.message.startswith("The list of all numbers to 999 scores 1.00 on average")
    refused, note = [one for one in findings if one.check == "lengths"]
    assert (refused.level, note.level) == ("error", "note")
    assert "cannot be put to the base model: The template refuses it." in refused.message


@pytest.mark.processes
async def test_a_slow_environment_is_looked_at_less_and_that_is_said(world: World) -> None:
    await world.serve(bad=DEFECTS)
    findings = await check(world.service, "late", scope=Scope(prompts=20, seconds=1.0, together=16))
    messages = {one.check: one.message for one in findings}
    assert messages["time"].startswith("Only ") and " of 40 instances were drawn" in messages["time"]
    assert " of 16 episodes at once ended in " in messages["concurrency"]
    assert messages["concurrency"].endswith("No line was seen to block: they wait for something that they share.")


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
async def test_checks_get_what_others_leave(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def play(self: subjects.Subject, *args: object) -> object:
        outcome = await real(self, *args)  # type: ignore[arg-type]
        seen.extend(os.getpriority(os.PRIO_PROCESS, pid) for pid in world.pids())
        return outcome

    real = subjects.Subject.play
    monkeypatch.setattr(subjects.Subject, "play", play)
    await world.serve(echo=ECHO)
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
    checks = Background(world.service, BRIEF, kept.knows, kept.add, settled=0.0)
    try:
        for plugin in ("echo", "needy", "gone"):
            checks.changed(plugin)
        name, version, findings = await kept.found.get()
        assert (name, version) == ("echo/echo", world.service.resolve("echo").version)
        assert "variety" in {finding.check for finding in findings if finding.level == "warning"}
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
    checks = Background(world.service, Scope(prompts=8, seconds=60.0), kept.knows, kept.add, settled=0.0)
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


BLOCKING = """
import asyncio, time
from marlaas.plugins import env

def grade(text):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    return len(text) / 100

@env
async def slow(ep):
    reply = await ep.ask(f"{ep.rng.randrange(10**6)}")
    return grade(reply.text)

@env
async def crowded(ep):
    global players
    players += 1
    try:
        await ep.ask(f"{ep.rng.randrange(10**6)}")
        if players > 8:
            raise RuntimeError("too many players at one table")
    finally:
        players -= 1
    return 0.0

players = 0

@env
async def naps(ep):
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    time.sleep(0.02)
    return 0.0

@env
async def awaits(ep):
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    await asyncio.sleep(0.02)
    return 0.0
"""

BURNS = 5, 6, 7
"""Lines of ``grade`` that compute."""

NAPS = 33
"""The one of ``naps``."""


@pytest.mark.processes
async def test_a_real_process_says_which_line_blocks(world: World) -> None:
    await world.serve(games=BLOCKING)
    scopes = {
        "slow": Scope(prompts=1, together=8, seconds=60),
        "naps": Scope(prompts=1, together=32),
        "awaits": Scope(prompts=1, together=32),
        "crowded": Scope(prompts=1, together=16),
    }
    found = {}
    for name, scope in scopes.items():
        findings = await check(world.service, f"games/{name}", scope=scope)
        (found[name],) = [one for one in findings if one.check == "concurrency"]
    slow = found["slow"]
    assert slow.level == "warning" and slow.message.startswith("Blocks at "), slow.message
    assert any(f"at games.py:{line}:" in slow.message for line in BURNS), slow.message
    assert f"at games.py:{NAPS}: no other" in found["naps"].message
    assert "32 of 32 episodes at once" in found["naps"].message
    assert found["awaits"].message.startswith("32 episodes at once")
    assert found["awaits"].message.endswith("no line was seen to block.")
    assert found["crowded"].level == "error" and "too many players at one table" in found["crowded"].message


ROWS = """
from marlaas.plugins import env

@env(data="topics.{split}.jsonl")
async def topics(ep, task):
    return (await ep.ask(task["question"])).text == task["answer"]
"""


@pytest.mark.processes
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "never asks"])
async def test_a_check_says_so(world: World, tmp_path: Path, asks: bool) -> None:
    table = [{"question": f"{n}?", "answer": str(n), "topic": "abcd"[n // 10]} for n in range(40)]
    for split, own in (("train", table), ("eval", [*table[:2], {"question": "x?", "answer": "x", "topic": "a"}])):
        world.save(f"topics.{split}.jsonl", "".join(json.dumps(row) + "\n" for row in own))
    await world.serve(topics=ROWS if asks else ROWS.replace("    return", "    return 0.0\n    return"))
    with await world.service.bind("topics/topics", config={}) as lease:
        findings = [one for one in await check_version(lease, Scope(prompts=4)) if one.check == "rows"]
    assert [one.level for one in findings] == ["warning", "note"]
    assert findings[0].message.startswith("2 evaluation rows are train rows, too")
    assert "sorted by 'topic' (4 values)" in findings[1].message
