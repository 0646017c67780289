"""Every example is played by a policy that is good at it, and by one that talks nonsense."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins import Environment, Reply, ToolCall
from marlaas.plugins.messages import Ask
from tests.loading import load

from .plugins.scripted import Policy, play

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED_ELSEWHERE = {"capitals", "shortest", "frozen_lake", "learning_rates"}
"""By the tests of scoring, of ranking, of the libraries that environments need, and with a real engine."""


def example(name: str) -> Environment:
    return load(EXAMPLES / f"{name}.py")[name]


def told(ask: Ask) -> str:
    return ask.messages[-1].content


def backwards(ask: Ask) -> str:
    return told(ask).split()[1][::-1]


def plural(ask: Ask) -> str:
    irregular = {"leaf": "leaves", "knife": "knives", "mouse": "mice", "city": "cities", "party": "parties"}
    noun = told(ask).split('"')[1]
    return irregular.get(noun, f"{noun}{'es' if noun[-1] in 'xh' else 's'}")


def codebreaker() -> Policy:
    """Guesses what fits all that it was told."""
    left = ["".join(digits) for digits in itertools.permutations("0123456789", 3)]
    guess = ""

    def fits(secret: str, placed: int, elsewhere: int) -> bool:
        same = sum(a == b for a, b in zip(guess, secret, strict=True))
        return (same, len(set(guess) & set(secret)) - same) == (placed, elsewhere)

    def policy(ask: Ask) -> str:
        nonlocal left, guess
        if found := re.fullmatch(r"(\d) in place, (\d) elsewhere", told(ask)):
            left = [secret for secret in left if fits(secret, int(found[1]), int(found[2]))]
        guess = left[len(left) // 2]
        return guess

    return policy


def shopper() -> Policy:
    """Asks for every price, then buys."""

    def calls() -> Iterator[tuple[str, str] | str]:
        prices: dict[str, int] = {}
        things = re.findall(r"\w+", said.partition("There are ")[2])
        for thing in things:
            yield "price", thing
            prices[thing] = int(said)
        yield "buy", min(prices, key=prices.__getitem__)
        yield "done"

    said, script = "", calls()

    def policy(ask: Ask) -> str | Reply:
        nonlocal said
        said = told(ask)
        match next(script):
            case str(text):
                return text
            case (tool, item):
                return Reply("", "tool", 0, (ToolCall(tool, {"item": item}),))

    return policy


def nim_player(ask: Ask) -> str:
    """Leaves a multiple of four, where that is possible."""
    return str(int(told(ask).split()[0]) % 4 or 1)


def adding(ask: Ask) -> str:
    return str(sum(map(int, re.findall(r"\d+", told(ask)))))


def programmer(ask: Ask) -> str:
    *_, word, _, more = told(ask).rstrip(".").split()
    sign = {"sum": "+", "product": "*", "difference": "-"}[word]
    return f"print(int(input()) {sign} int(input()) + {more})"


def prime_finder(ask: Ask) -> str:
    start = int(told(ask).rstrip(":").split()[-1])
    return str(next(n for n in itertools.count(start + 1) if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))))


def rememberer() -> Policy:
    facts: dict[str, str] = {}

    def policy(ask: Ask) -> str:
        if ask.branch:
            return facts[told(ask).split()[1]]
        facts.update(re.findall(r"the (\w+) is (\w+)", told(ask)))
        return "ready"

    return policy


def careful(ask: Ask) -> str:
    return "roll" if "You have 0" in told(ask) else "stop"


SKILLED: dict[str, tuple[Policy, dict[str, float]]] = {
    "reverse_words": (backwards, {"agent": 1.0}),
    "plurals": (plural, {"agent": 1.0}),
    "bulls": (codebreaker(), {"agent": 1.0}),
    "shop": (shopper(), {"buyer": 1.0}),
    "nim": (nim_player, {"first": 1.0, "second": -1.0}),
    "duel": (adding, {"first": 0.5, "second": 0.5}),
    "primes": (prime_finder, {"agent": 1.0}),
    "recall": (rememberer(), {"agent": 1.0}),
    "pig": (careful, {"agent": 0.0}),
}


@pytest.mark.parametrize("name", SKILLED)
async def test_a_good_policy_is_paid(name: str) -> None:
    policy, rewards = SKILLED[name]
    played = await play(example(name), policy, member=1)
    assert not played.invalid
    for agent, reward in rewards.items():
        assert played.rewards.by_agent[agent] >= reward
    assert set(played.rewards.by_agent) == set(rewards)


@pytest.mark.processes
async def test_a_program_is_paid_for_what_it_prints() -> None:
    assert (await play(example("coding"), programmer)).reward == 1.0


@pytest.mark.processes
@pytest.mark.parametrize("program", ["print(1)", "import sys; sys.exit(0)", "1 +"])
async def test_a_program_is_not_paid_for_ending_well(program: str) -> None:
    assert (await play(example("coding"), lambda ask: program)).reward == 0.0


@pytest.mark.parametrize("name", SKILLED)
@pytest.mark.parametrize("junk", ["", "0", "None", "a" * 50, "\u00b2"])
async def test_nonsense_is_paid_little_and_breaks_nothing(name: str, junk: str) -> None:
    played = await play(example(name), lambda ask: junk)
    assert max(played.rewards.by_agent.values()) <= 0.5


@pytest.mark.parametrize("name", SKILLED)
async def test_instances_are_drawn_and_held_out(name: str) -> None:
    """Equal draws ask the same, others ask something else; and every setting has a default."""

    async def first(split: str, index: int) -> str:
        return (await play(example(name), lambda ask: "", split=split, index=index)).asks[0].messages[-1].content

    assert await first("train", 3) == await first("train", 3)
    drawn = {await first(split, index) for split in ("train", "eval") for index in range(8)}
    assert len(drawn) > 1 or name in ("nim", "pig", "bulls"), "those three draw what is not said"


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SKILLED, "coding"} | TESTED_ELSEWHERE
