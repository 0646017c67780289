"""The bundled environments speak the words that the base was taught, and pay the taught right player."""

import asyncio
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from marlaas.plugins.episode import Episode
from marlaas.plugins.messages import Ask, Reply, ToolCall
from tools.base.skills import BUNDLED, CALC, NAMES, SKILLS, TEMPLATES, THINGS, Game

Player = Callable[[list[str], bool], str]


def loaded(name: str) -> ModuleType:
    """The module of a bundled file, loaded by its path as the engine does."""
    spec = importlib.util.spec_from_file_location(name, Path("plugins/bundled") / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adder(heard: list[str], right: bool) -> str:
    a, b = re.findall(r"\d+", heard[0])
    return str(int(a) + int(b) + (not right))


def guesser(heard: list[str], right: bool) -> str:
    low, high = map(int, re.findall(r"\d+", heard[0]))
    return Game(low, high - low + 1, 4, low).reply(heard, right)


def solver(heard: list[str], right: bool) -> str:
    if len(heard) > 1:
        return heard[-1]
    numbers = re.findall(r"\d+", heard[0])
    first, second = next(t[1:] for t in TEMPLATES if shape(t[0]) == shape(heard[0]))
    return f"{numbers[0]}{first}{numbers[1]}" + f"{second}{numbers[2]}" * right


PLAYERS: dict[str, Player] = {"arithmetic": adder, "guess": guesser, "calculator": solver}


def shape(text: str) -> str:
    """A prompt without what varies in it."""
    text = re.sub(rf"\b({'|'.join(NAMES)}|{{name}})\b|{{name}}", "NAME", text)
    text = re.sub(rf"\b({'|'.join(THINGS)})\b|{{things}}", "THINGS", text)
    return re.sub(r"\d+|{[abc]}", "0", text)


def played(name: str, index: int, say: Callable[[list[str]], str]) -> tuple[Any, Episode, list[Ask]]:
    """What an episode returns, what it logged and asked, when the model says this."""
    asked: list[Ask] = []
    heard: list[str] = []

    async def answer(ask: Ask) -> Reply:
        asked.append(ask)
        heard.extend(m.content for m in ask.messages)
        text = say(heard)
        if name == "calculator" and len(heard) == 1:
            return Reply("", "tool", len(asked), (ToolCall("calc", {"expression": text}),))
        return Reply(text, "stop", len(asked))

    episode = Episode(answer, index=index)
    return asyncio.run(getattr(loaded(name), name)(episode)), episode, asked


@pytest.mark.parametrize("name", PLAYERS)
def test_the_right_player_earns_and_the_wrong_one_less(name: str) -> None:
    player = PLAYERS[name]
    right = [played(name, i, lambda heard: player(heard, True))[0] for i in range(60)]
    wrong = [played(name, i, lambda heard: player(heard, False))[0] for i in range(60)]
    assert all(r is True for r in right)
    assert sum(wrong) < 30


@pytest.mark.parametrize("name", PLAYERS)
def test_prompts_are_the_taught_ones(name: str) -> None:
    skill, rng = next(s for s in SKILLS if s.name == BUNDLED[name]), Random(0)
    taught = {shape(skill.draw(rng).opening) for _ in range(100)}
    player = PLAYERS[name]
    episodes = [played(name, i, lambda heard: player(heard, True)) for i in range(100)]
    met = {shape(asked[0].messages[0].content) for _, _, asked in episodes}
    assert met == taught


def test_the_tool_is_the_taught_one() -> None:
    _, episode, asked = played("calculator", 0, lambda heard: solver(heard, True))
    assert asked[0].tools == (CALC,)
    assert episode.logged == {"calls": 1.0, "lenient": 1.0}


def test_the_calculator_is_safe() -> None:
    value = loaded("calculator").value
    assert [value(e) for e in ("47*6-12", " -(2+3)*4 ", "+".join("1" * 30))] == [270, -20, 30]
    for hostile in (
        "9**9",
        "2**" * 19 + "9",
        "__import__",
        "1" * 61,
        "()",
        "",
        "1+",
        "007",
        "5(3)",
        "(" * 60,
        "1\n",
        "１",
    ):
        with pytest.raises((ValueError, SyntaxError)):
            value(hostile)
