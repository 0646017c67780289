"""What a plain ``def`` environment can do in its thread."""

from __future__ import annotations

import threading

import pytest

from marlaas.plugins import BlockingEpisode, Episode, Invalid, Reply, ToolCall, env
from marlaas.plugins.messages import Ask

from .scripted import play


async def test_tools_run_in_the_thread_of_the_episode_and_may_ask() -> None:
    threads: set[int] = set()

    @env
    def helped(ep: BlockingEpisode) -> bool:
        threads.add(threading.get_ident())

        def consult(word: str) -> str:
            """Ask somebody else."""
            threads.add(threading.get_ident())
            return ep.agent("expert").ask(word).text

        async def look() -> str:
            """Look."""
            return "nothing"

        return ep.agent("solver", tools=[consult, look]).act("go").text == "done"

    calls = [ToolCall("consult", {"word": "why"}), ToolCall("look", {})]
    said: list[Reply | str] = [Reply("", "tool", 0, (call,)) for call in calls]

    def policy(ask: Ask) -> Reply | str:
        if ask.agent == "expert":
            return "because"
        return said.pop(0) if said else "done"

    played = await play(helped, policy)
    assert played.rewards.by_agent == {"solver": 1.0, "expert": 1.0}
    assert [ask.messages[-1].content for ask in played.asks] == ["go", "why", "because", "nothing"]
    assert len(threads) == 1 and threading.get_ident() not in threads


async def test_the_tool_loop_ends_in_a_thread_too() -> None:
    @env
    def looping(ep: BlockingEpisode, turns: int = 3) -> bool:
        def look() -> None:
            """Look."""
            raise LookupError("nothing")

        def leave() -> None:
            """Leave."""
            raise Invalid("left", reward=-1.0)

        return ep.agent(tools=[look, leave]).act("go", max_turns=turns).finish == "tool"

    def calling(name: str) -> Reply:
        return Reply("", "tool", 0, (ToolCall(name, {}),))

    played = await play(looping, lambda ask: calling("look"))
    assert played.reward == 1.0 and len(played.asks) == 3
    assert played.asks[1].messages[0].content == "error: LookupError: nothing"
    assert (await play(looping, lambda ask: calling("leave"))).reward == -1.0
    with pytest.raises(ValueError, match="max_turns must be at least 1, not 0"):
        await play(looping, lambda ask: "", turns=0)


async def test_what_is_assigned_to_the_task_is_the_episodes() -> None:
    @env(data=lambda split: ["row"])
    def assigns(ep: BlockingEpisode) -> float:
        assert ep.task == "row"
        ep.task = {"answer": ep.rng.randrange(10), "noise": ep.noise.randrange(10)}
        ep.log(split=ep.split)
        return ep.index

    played = await play(assigns, lambda ask: "", index=3)
    assert played.reward == 3.0 and set(played.episode.task) == {"answer", "noise"}
    assert isinstance(played.episode, Episode) and played.episode.logged == {"split": "train"}
