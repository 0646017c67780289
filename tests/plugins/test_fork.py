"""Forks as an environment makes them: what goes out, under whose name, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.plugins import BlockingEpisode, Episode, Message, Reply, env
from marlaas.plugins.messages import Ask, Fork

from .scripted import Model, play


def turned(*texts: str) -> Model:
    """A model whose replies are numbered as the engine numbers those of one conversation."""
    return Model(*(Reply(text, "stop", turn) for turn, text in enumerate(texts)))


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


async def test_a_fork_says_only_what_is_new_and_whose_history_it_has() -> None:
    model = turned("a", "b", "c")
    agent = Episode(model).agent("solver", system="Be brief.")
    await agent.ask("one")
    fork = agent.fork()
    await agent.ask("two")
    await fork.ask("other")
    assert model.asks[1:] == [
        Ask("solver", said("two")),
        Ask("solver", said("other"), branch=1, fork=Fork("solver", 0, 1)),
    ]
    model.replies.append(Reply("d", "stop", 2))
    await fork.ask("more")
    assert model.asks[3] == Ask("solver", said("more"), branch=1)


async def test_a_fork_before_any_turn_begins_with_the_system_prompt() -> None:
    model = turned("a", "b")
    agent = Episode(model).agent("solver", system="Be brief.")
    fork = agent.fork()
    await fork.ask("one")
    await agent.ask("two")
    system = Message("system", "Be brief.")
    assert [(ask.branch, ask.fork, ask.messages[0]) for ask in model.asks] == [(1, None, system), (0, None, system)]


async def test_forks_of_forks() -> None:
    model = Model(*(Reply("", "stop", turn) for turn in (0, 1, 1, 2)))
    agent = Episode(model).agent()
    await agent.ask()
    first = agent.fork()
    second = first.fork()  # the first has not spoken: both leave the agent
    await first.ask()
    third = first.fork()
    await second.ask()
    await third.ask()
    assert [ask.fork for ask in model.asks] == [
        None,
        Fork("agent", 0, 1),
        Fork("agent", 0, 1),
        Fork("agent", 1, 2),
    ]
    assert [ask.branch for ask in model.asks] == [0, 1, 2, 3]


async def test_a_fork_with_a_name_is_an_agent_of_its_own() -> None:
    model = turned("a", "b", "c")
    episode = Episode(model)
    agent = episode.agent("solver")
    await agent.ask("one")
    critic = agent.fork("critic")
    assert list(episode.agents) == ["solver", "critic"] and episode.agent("critic") is critic
    await critic.ask("two")
    await critic.fork().ask("three")
    assert model.asks[1:] == [
        Ask("critic", said("two"), fork=Fork("solver", 0, 1)),
        Ask("critic", said("three"), branch=1, fork=Fork("critic", 0, 2)),
    ]
    with pytest.raises(ValueError, match="there is an agent 'critic' already"):
        agent.fork("critic")
    with pytest.raises(ValueError, match="at most 64"):
        agent.fork("")


async def test_an_agent_that_has_not_replied_cannot_be_forked() -> None:
    async def never(ask: Ask) -> Reply:
        return await asyncio.Future()

    agent = Episode(never).agent()
    asking = asyncio.create_task(agent.ask("x"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="forked before it had replied"):
        agent.fork()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(RuntimeError, match="forked before it had replied"):
        agent.fork()


async def test_forks_share_tools_and_reward() -> None:
    @env
    def branching(ep: BlockingEpisode) -> float:
        def look() -> str:
            """Look."""
            return "nothing"

        agent = ep.agent("solver", system="Look.", tools=[look])
        agent.ask("one")
        return sum(agent.fork().act("two").text == "x" for _ in range(2))

    played = await play(branching, lambda ask: "x")
    assert played.rewards.by_agent == {"solver": 2.0}
    assert [len(ask.tools) for ask in played.asks] == [1, 0, 0]
    assert [ask.branch for ask in played.asks] == [0, 1, 2]


async def test_a_fork_with_a_name_is_paid_by_its_own_replies() -> None:
    """Its history is another agent's: what is paid after its first reply belongs to that, not to a third one."""
    episode = Episode(turned("a", "b", "c"))
    root = episode.agent("root")
    await root.ask("one")
    await root.ask("two")
    branch = root.fork("branch")
    await branch.ask("three")
    episode.reward(1.0)
    assert branch.turns == 3
    assert [(paid["agent"], paid["turns"]) for paid in episode.paid] == [("root", 2), ("branch", 1)]
