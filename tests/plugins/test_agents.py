"""Who may speak in an episode and be paid for it: the agents that an environment declares, or any where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from marlaas.plugins import Environment, Episode, env
from marlaas.plugins.agent import MOST_AGENTS

from .scripted import Model, play


class Debate:
    """The class form."""

    async def play(self, ep: Episode) -> dict[str, float]:
        said = await ep.agent("proposer").ask("Say something.")
        return {"proposer": 1.0, "critic": 0.0} if said.text == "enough" else {"proposer": 0.0, "critic": 1.0}


def debate(ep: Any) -> dict[str, float]:
    said = ep.agent("proposer").ask("Say something.")
    return {"proposer": float(said.text == "enough"), "critic": float(said.text != "enough")}


@pytest.mark.parametrize("target", [Debate, debate])
async def test_agents_of_both_forms_are_paid_even_if_they_never_spoke(
    target: Callable[..., Any],
) -> None:
    declared: Environment = env(agents=["proposer", "critic"])(target)
    assert declared.agents == ("proposer", "critic")
    played = await play(declared, lambda ask: "enough")
    assert played.rewards.by_agent == {"proposer": 1.0, "critic": 0.0} and set(played.episode.agents) == {"proposer"}


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ("ab", "must be a list of names, not 'ab'"),
        ({"a", "b"}, "must be a list of names"),
        (("a", "a"), "must have different names, not a, a"),
        (("a", ""), "at most 64 characters, not ''"),
        (("x" * 10_000,), r"at most 64 characters, not 'xxxx"),
        ((["a"],), "an agent's name is a text"),
        ([f"a{n}" for n in range(MOST_AGENTS + 1)], "talk declares 257 agents; an episode has at most 256"),
    ],
)
def test_what_cannot_be_declared_is_said_at_import(agents: Any, says: str) -> None:
    async def talk(ep: Episode) -> float:
        return 1.0

    with pytest.raises((TypeError, ValueError), match=says) as caught:
        env(agents=agents)(talk)
    assert len(str(caught.value)) < 300


async def test_nobody_else_speaks_not_even_a_fork() -> None:
    episode = Episode(Model("a"), declared=("proposer", "critic"))
    proposer = episode.agent("proposer")
    await proposer.ask("go")
    with pytest.raises(ValueError, match="no agent 'judge': @env declares proposer, critic"):
        episode.agent("judge")
    with pytest.raises(ValueError, match="no agent 'judge': @env declares proposer, critic"):
        proposer.fork("judge")
    assert proposer.fork("critic").name == "critic" and proposer.fork().name == "proposer"
    with pytest.raises(ValueError, match="no agent 'agent'"):
        await episode.ask("go")


def test_an_episode_has_room_for_so_many() -> None:
    episode = Episode(Model())
    for number in range(MOST_AGENTS):
        episode.agent(f"a{number}")
    with pytest.raises(ValueError, match="at most 256 agents"):
        episode.agent("one more")
    with pytest.raises(ValueError, match="at most 256 agents"):
        episode.agent("a0").fork("one more")
    assert episode.agent("a0").name == "a0"
