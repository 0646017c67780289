"""Instances that change: when they are drawn again, elsewhere, or by another member of the group."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import Pace, draw_again, draws
from marlaas.plugins import Episode

from .scripted import Play, Scripted, judged, levels, only


async def found(function: Play) -> list[Finding]:
    """What is found of the first instances."""
    subject, pace = Scripted(function), Pace(60)
    seen = await draws(subject, [("train", 0), ("train", 1), ("eval", 0)], pace, 1.0)
    return judged(checks.check_determinism, repeats=await draw_again(subject, seen, pace, 1.0))


async def test_draws_from_the_episode_repeat() -> None:
    async def play(ep: Episode) -> int:
        await ep.ask(f"{ep.rng.random()}")
        await ep.ask(f"{ep.noise.random()} comes later")
        return 1

    finding = only(await found(play))
    assert finding.level == "note" and finding.message.startswith("3 instances had the same first prompt again")


async def test_a_sequence_restarted_with_the_process_is_found() -> None:
    drawn: dict[int, dict[str, int]] = {}

    async def play(ep: Episode) -> int:
        known = drawn.setdefault(subject.processes, {})
        await ep.ask(f"task {known.setdefault(f'{ep.split}/{ep.index}', len(known))}")
        return 1

    subject, pace = Scripted(play), Pace(60)
    seen = await draws(subject, [("train", index) for index in range(3)], pace, 1.0)
    finding = only(judged(checks.check_determinism, repeats=await draw_again(subject, seen, pace, 1.0)))
    assert finding.level == "error" and "changes in another process: 'task " in finding.message
    assert "2 of 3 instances do that" in finding.message  # the middle one has the same place in both orders


async def test_members_may_not_be_asked_different_things() -> None:
    async def play(ep: Episode) -> int:
        await ep.ask(f"{'x' * 40} {ep.noise.randrange(10**6)}")
        return 1

    finding = only(await found(play))
    assert finding.level == "error" and "differs between the members of a group: '…xxxxxxx " in finding.message
    assert "ep.noise is for what happens after the first prompt" in finding.message


async def test_an_instance_that_fails_the_second_time() -> None:
    met: set[str] = set()

    async def play(ep: Episode) -> int:
        if (key := f"{ep.split}{ep.index}") in met:
            raise KeyError(key)
        met.add(key)
        await ep.ask("x")
        return 1

    finding = only(await found(play))
    assert "drawn again: it has none then (env.py:3: KeyError: 'train0')" in finding.message


@pytest.mark.parametrize("what", ["tools", "limit"])
async def test_what_is_asked_beside_the_text_counts(what: str) -> None:
    times = 0

    def tool(x: int) -> int:
        "A tool."
        return x

    async def play(ep: Episode) -> int:
        nonlocal times
        times += 1
        odd = times % 2 == 1
        await ep.agent(tools=[tool] if odd and what == "tools" else []).ask("x", max_tokens=5 + odd)
        return 1

    findings = await found(play)
    assert set(levels(findings)) == {"error"}
    assert "its tools, limits or agent differ" in findings[0].message
