"""The author API without a process: a scripted model answers."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from marlaas.plugins import Episode, Invalid, Message, Reply, Score, ToolCall, env
from marlaas.plugins.episode import Settle
from marlaas.plugins.messages import Ask
from marlaas.plugins.rewards import rewards_of
from marlaas.plugins.tools import schema_of

from .scripted import Model, play


def calling(name: str, **arguments: Any) -> Reply:
    return Reply("", "tool", 0, (ToolCall(name, arguments),))


def price(item: str, currency: Literal["eur", "usd"] = "eur", counts: list[int] | None = None) -> int:
    """Price of an item."""
    if item == "gold":
        raise Invalid("hands off", reward=-1.0)
    return {"ink": 3}[item]


async def test_only_what_is_new_goes_out() -> None:
    model = Model("a", "b")
    agent = Episode(model).agent("solver", system="Be brief.")
    await agent.ask("one", stop="\n", max_tokens=4)
    await agent.ask([Message("user", "two")])
    assert model.asks == [
        Ask("solver", (Message("system", "Be brief."), Message("user", "one")), (), 4, ("\n",)),
        Ask("solver", (Message("user", "two"),)),
    ]


async def test_what_an_agent_refuses() -> None:
    episode = Episode(Model("a"))
    agent = episode.agent(system="x")
    with pytest.raises(ValueError, match="is set once"):
        await agent.ask([Message("system", "y")])
    with pytest.raises(TypeError, match="text or messages"):
        await agent.ask([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="are fixed"):
        episode.agent(system="y")
    assert episode.agent() is agent
    with pytest.raises(ValueError, match="at most 64"):
        episode.agent("a" * 65)


def test_the_schema_of_a_tool() -> None:
    def lookup(word: str, n: int = 1, kind: Literal["noun", "verb"] = "noun", ids: list[int] = []) -> str:  # noqa: B006
        """Find a word."""
        return word

    assert schema_of(lookup)["function"] == {
        "name": "lookup",
        "description": "Find a word.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "n": {"type": "integer"},
                "kind": {"enum": ["noun", "verb"]},
                "ids": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["word"],
        },
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (calling("cost", item="ink"), "error: there is no tool 'cost'; there are: price"),
        (calling("price"), "error: the argument 'item' is missing"),
        (calling("price", item=3), "error: the argument 'item' must be of type string"),
        (calling("price", item="ink", n=1), "error: there is no argument 'n'; there are: item, currency"),
        (calling("price", item="ink", currency="yen"), "error: the argument 'currency' must be one of ['eur', 'usd']"),
        (calling("price", item="pen"), "error: KeyError: 'pen'"),
        (calling("price", item="ink"), "3"),
    ],
)
async def test_mistakes_in_calls_are_told_to_the_model(call: Reply, told: str) -> None:
    model = Model(call, "done")

    def price(item: str, currency: Literal["eur", "usd"] = "eur") -> int:
        return {"ink": 3}[item]

    reply = await Episode(model).agent(tools=[price]).act("go")
    assert reply.text == "done"
    assert model.asks[1].messages == (Message("tool", told, name=call.tool_calls[0].name),)


async def test_the_tool_loop_ends() -> None:
    async def look() -> str:
        return "nothing"

    model = Model(*(calling("look") for _ in range(3)))
    assert (await Episode(model).agent(tools=[look]).act("go", max_turns=3)).finish == "tool"
    with pytest.raises(ValueError, match="at least 1"):
        await Episode(model).agent(tools=[look]).act("go", max_turns=0)

    def forbidden() -> None:
        raise Invalid("no", reward=-1)

    with pytest.raises(Invalid):
        await Episode(Model(calling("forbidden"))).agent(tools=[forbidden]).act("go")


@pytest.mark.parametrize(
    ("result", "agents", "earned", "expected"),
    [
        (True, (), {}, {"agent": 1.0}),
        (2, ("solver",), {}, {"solver": 2.0}),
        (0.5, ("a", "b"), {}, {"a": 0.5, "b": 0.5}),
        ({"a": 1, "b": Score(-1)}, ("a", "b"), {}, {"a": 1.0, "b": -1.0}),
        ({"a": 1}, ("a", "b"), {"b": 0.5}, {"a": 1.0, "b": 0.5}),
        (None, ("a",), {"a": 0.5}, {"a": 0.5}),
        (None, ("a", "b"), {"": 0.5, "b": 1.0}, {"a": 0.5, "b": 1.5}),
        (0.5, (), {"": 0.5}, {"agent": 1.0}),
    ],
)
def test_rewards(result: object, agents: tuple[str, ...], earned: dict[str, float], expected: dict[str, float]) -> None:
    assert rewards_of(result, agents, earned).by_agent == expected


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned None"),
        ("1", "must be a number, not str '1'"),
        (float("inf"), "must be finite"),
        pytest.param(10**400, "the reward must lie between -1e\\+09 and 1e\\+09", id="beyond every float"),
        (1e10, "the reward must lie between -1e\\+09 and 1e\\+09"),
        ({"c": 1}, "names 'c', but the agents are a, b"),
        ({}, "empty dict"),
        (Score(1, part=float("nan")), "the part 'part' of the reward must be finite"),
    ],
)
def test_what_is_no_reward(result: object, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        rewards_of(result, ("a", "b"), {})


def test_an_integer_beyond_all_floats_is_logged_as_its_text() -> None:
    episode = Episode(Model())
    episode.log(steps=10**400)
    assert episode.logged == {"steps": str(10**400)}


def test_a_reward_for_an_agent_that_is_not_there_is_no_reward() -> None:
    with pytest.raises(ValueError, match=r"ep\.reward names 'c', but the agents are a, b"):
        rewards_of(1, ("a", "b"), {"c": 0.5})


async def paid_early(*, settle: Settle | None = None, waiting: bool = False) -> Episode:
    """Two agents, the first of which is done; ``waiting``: it was asked something just before."""
    replied = asyncio.Event()

    async def answer(ask: Ask) -> Reply:
        await replied.wait()
        return Reply("x", "stop", 0)

    episode = Episode(answer, declared=("a", "b"), settle=settle)
    asked = asyncio.ensure_future(episode.agent("a").ask("go"))
    await asyncio.sleep(0)
    if not waiting:
        replied.set()
        await asked
    try:
        episode.reward(0.25)
        episode.reward(0.5, agent="a", final=True)
    finally:
        asked.cancel()
    return episode


async def test_an_agent_may_be_paid_for_the_last_time() -> None:
    told: list[tuple[str, float]] = []
    episode = await paid_early(settle=lambda *final: told.append(final))
    assert told == [("a", 0.75)] and episode.final == {"a": 0.75}
    episode.reward(1.0)
    assert [one["agent"] for one in episode.paid] == ["a", "a"], "later payments are the others'"
    for result in (2.0, {"b": 2.0}):
        found = rewards_of(result, episode.payees, episode.earned, episode.final).by_agent
        assert found == {"a": 0.75, "b": 3.25}
    with pytest.raises(ValueError, match="the reward of 'a' is final already"):
        episode.reward(1.0, agent="a")
    with pytest.raises(ValueError, match="'a' is final already, so it cannot be returned"):
        rewards_of({"a": 1.0}, episode.payees, episode.earned, episode.final)
    with pytest.raises(RuntimeError, match="agent 'a' was asked although its reward is final"):
        await episode.agent("a").ask("again")
    with pytest.raises(RuntimeError, match="agent 'a' was asked although its reward is final"):
        await episode.agent("a").fork().ask("again")


@pytest.mark.parametrize("result", [None, 1.0])
def test_where_all_agents_are_done_nothing_else_counts(result: object) -> None:
    assert rewards_of(result, ("a", "b"), {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).by_agent == {"a": 1.0, "b": 2.0}


def test_who_is_paid_nothing_stays_so_beside_one_that_is_done() -> None:
    """As where the other one is paid with ``ep.reward``, not for the last time."""
    paid = {"a": 1.0}
    assert rewards_of(None, ("a", "b"), paid).by_agent == rewards_of(None, ("a", "b"), paid, paid).by_agent == paid


async def test_who_cannot_be_paid_for_the_last_time() -> None:
    with pytest.raises(ValueError, match="where a score function or a ranking gives the rewards"):
        await paid_early(settle=None)
    with pytest.raises(RuntimeError, match="was paid for the last time before it had replied"):
        await paid_early(settle=lambda agent, reward: None, waiting=True)
    episode = Episode(Model(), declared=("a", "b"))
    for agent in ("", "c"):
        with pytest.raises(ValueError, match=r"a final reward names one of the agents \(a, b\)"):
            episode.reward(1.0, agent=agent, final=True)
    assert episode.earned == {} and episode.final == {}


async def test_rewards_for_turns_are_summed_and_logged_by_their_name() -> None:
    @env
    async def walk(ep: Episode, steps: int = 3) -> None:
        for _ in range(steps):
            await ep.agent("walker").ask("go")
            ep.reward(0.25, name="progress")
        ep.reward(1)
        ep.reward(1, "walker", name="arrived")

    played = await play(walk, lambda ask: "", steps=3)
    assert played.rewards.by_agent == {"walker": 2.75}
    assert played.episode.logged == {"progress": 0.75, "arrived": 1.0}
    assert [(paid["turns"], paid["amount"], paid["name"]) for paid in played.episode.paid] == [
        (1, 0.25, "progress"), (2, 0.25, "progress"), (3, 0.25, "progress"), (3, 1.0, ""), (3, 1.0, "arrived")
    ]  # fmt: skip
    assert {paid["agent"] for paid in played.episode.paid} == {"walker"}
    for _ in range(2000):
        played.episode.reward(1)
    assert len(played.episode.paid) == 1000 and played.episode.earned[""] > 2000
    with pytest.raises(ValueError, match="a reward must be finite"):
        played.episode.reward(float("inf"))


@pytest.mark.parametrize("content", [42, None, {"role": "user"}, Message("user", "x"), [42]])
async def test_what_is_no_question(content: Any) -> None:
    with pytest.raises(TypeError, match=r"ask takes a text or (a list of )?messages, not \w+"):
        await Episode(Model("2")).ask(content)


async def test_an_environment_is_still_a_function() -> None:
    @env(name="sum", timeout=5)
    async def addition(ep: Episode, digits: int = 1) -> bool:
        """Adds."""
        return (await ep.ask("1+1=")).text == "2"

    assert (addition.name, addition.timeout, addition.description) == ("sum", 5.0, "Adds.")
    assert await addition(Episode(Model("2")))


def test_each_split_draws_instances_of_its_own() -> None:
    def drawn(split: str, seed: int) -> float:
        return Episode(Model(), split=split, seed=seed).rng.random()

    assert len({drawn(split, 1) for split in ("train", "eval", "test")}) == 3
    assert drawn("train", 1) != drawn("train", 2)
    assert drawn("eval", 1) == drawn("eval", 2) and drawn("test", 1) == drawn("test", 2), "for every run the same"
