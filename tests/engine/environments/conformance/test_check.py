"""All checks together, on environments without processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.environments.conformance.check import Scope, examine, unset
from marlaas.engine.environments.conformance.finding import LEVELS
from marlaas.engine.environments.protocol import EnvironmentInfo
from marlaas.engine.errors import BaseModelError
from marlaas.plugins import Episode
from marlaas.plugins.messages import Ask
from marlaas.plugins.parameters import Parameter

from .scripted import Clock, Play, Scripted

SCOPE = Scope(prompts=20)


async def arithmetic(ep: Episode) -> bool:
    a, b = (ep.rng.randrange(10**6) for _ in "ab")
    return (await ep.ask(f"{a}+{b}=")).text == str(a + b)


async def told(function: Play, level: str = "error") -> dict[str, str]:
    """Messages of that level by check."""
    findings = await examine(Scripted(function), SCOPE)
    return {finding.check: finding.message for finding in findings if finding.level == level}


async def test_a_sound_environment_has_notes_alone() -> None:
    findings = await examine(Scripted(arithmetic), SCOPE)
    assert {finding.level for finding in findings} == {"note"}
    checks = {finding.check for finding in findings}
    most = {"determinism", "variety", "leaks", "lengths", "junk", "baseline", "rewards"}
    assert checks == most | {"concurrency", "latency"}


async def test_a_scorer_that_takes_any_mention_of_the_answer() -> None:
    async def play(ep: Episode) -> bool:
        number = ep.rng.randrange(1000)
        return str(number) in (await ep.ask(f"Repeat {number}")).text

    assert (await told(play))["baseline"].startswith("The list of all numbers to 999 scores 1.00 on average")


async def test_an_environment_without_a_prompt_is_not_played() -> None:
    async def play(ep: Episode) -> bool:
        raise ValueError("no")

    subject = Scripted(play)
    (finding,) = await examine(subject, SCOPE)
    assert (finding.check, finding.level, subject.played) == ("instances", "error", 4)


async def test_an_eval_split_that_continues_the_train_split() -> None:
    async def play(ep: Episode) -> bool:
        number = ep.index + (1_000_000 if ep.split == "eval" else 0)
        return (await ep.ask(f"Repeat {number}")).text == str(number)

    assert "is the train split, moved by 1,000,000: train instance 1000000 has" in (await told(play))["leaks"]


async def test_errors_come_first() -> None:
    async def play(ep: Episode) -> bool:
        assert (await ep.ask("always the same")).text, "empty"
        return True

    found = [LEVELS.index(finding.level) for finding in await examine(Scripted(play), SCOPE)]
    assert found == sorted(found) and set(found) == {0, 1, 2}


async def test_a_slow_environment_is_looked_at_less_and_that_is_said() -> None:
    clock = Clock()

    async def play(ep: Episode) -> bool:
        clock.now += 2
        reply = await ep.ask(f"{ep.rng.random()}")
        clock.now += 2
        return reply.text == "right"

    findings = await examine(Scripted(play), SCOPE, clock)
    (slow,) = [one.message for one in findings if one.level == "warning" and one.check == "latency"]
    assert slow.startswith("A turn takes 2.0 s of its own time (median")
    (few,) = [one.message for one in findings if one.check == "time"]
    assert few.startswith("Only 10 of 40 instances were drawn")
    assert clock.now < 200 + 64 * 4, "the episodes of a crowd, which are played at once, take turns with this clock"


async def test_a_prompt_that_the_base_refuses() -> None:
    class Characters:
        context = 20

        async def tokens(self, ask: Ask) -> int:
            if ask.messages[0].content.startswith("1"):
                raise BaseModelError("The template refuses it.")
            return len(ask.messages[0].content)

    findings = await examine(Scripted(arithmetic), replace(SCOPE, ruler=Characters()))
    refused, note = [finding for finding in findings if finding.check == "lengths"]
    assert (refused.level, note.level) == ("error", "note")
    assert "cannot be put to the base model: The template refuses it." in refused.message


@pytest.mark.parametrize("given", [{}, {"depth": 3}])
def test_required_parameters_are_asked_for(given: dict[str, int]) -> None:
    parameters = (Parameter("depth", "int", None, True), Parameter("kind", "str", None, True))
    info = EnvironmentInfo("sea/swim", "abc", "ready", (*parameters, Parameter("lanes", "int", 8)))
    names = "'kind' (str)" if given else "'depth' (int) and 'kind' (str)"
    options = "kind=…" if given else "depth=… kind=…"
    command = f"`marlaas env check NAME --config {options}`"
    assert unset(info, given) == f"sea/swim needs {names}: give it as in {command}."
    assert unset(info, {"depth": 1, "kind": "x"}) == ""
