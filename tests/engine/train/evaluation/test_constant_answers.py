"""What a policy would score if it always said the same, while others speak as they do when it is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.baselines import ConstantBaselines
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import Replaced
from marlaas.engine.machine.services import Services
from marlaas.engine.rollout.programs import canned
from marlaas.engine.train.held_out import MOST_BESIDE, USUAL_BESIDE, Constant, ConstantAnswers, HeldOutEpisode
from marlaas.engine.train.selfplay import Match
from marlaas.plugins.messages import Answer, Ask, Fork, Message, Reply

AGENTS = ("first", "second")


def asked(agent: str, branch: int = 0, fork: Fork | None = None) -> Ask:
    return Ask(agent, (Message("user", "?"),), branch=branch, fork=fork)


@dataclass
class Duel:
    """Higher numbers win; the policy's opponent always says 5. Stands for the environments and for the rollout."""

    asks: Counter[str] = field(default_factory=Counter)
    """What the opponent was asked as which agent."""
    names: list[str] = field(default_factory=list)
    plays: int = 0

    async def run_episode(self, play: Any, spec: EpisodeSpec, roles: Any, name: str) -> Any:
        self.names.append(name)
        return SimpleNamespace(outcome=await play(spec, self._opponent(roles)))

    async def play(self, *arguments: Any) -> Any:
        answer = arguments[2]
        self.plays += 1
        texts = [(await answer(asked(agent))).text for agent in AGENTS]
        said = [int(text) if text.isdigit() else -1 for text in texts]
        rewards = [0.5 if said[0] == said[1] else float(mine == max(said)) for mine in said]
        return EpisodeOutcome("ok", dict(zip(AGENTS, rewards, strict=True)))

    def canned(self, answer: Answer) -> AbstractContextManager[Answering]:
        return canned(None, answer)

    def _opponent(self, roles: Any) -> Answer:
        async def answer(ask: Ask) -> Reply:
            self.asks[roles(ask.agent)] += 1
            return Reply("5", "stop", 0)

        return answer


def held_out(*agent_maps: Mapping[str, str]) -> list[HeldOutEpisode]:
    versions = {name: SimpleNamespace(name=name) for agents in agent_maps for name in agents.values()}
    return [
        HeldOutEpisode(
            EpisodeSpec("eval", index, 0, 0), Match(agents, cast(Any, versions)), cast(Any, agents.__getitem__)
        )
        for index, agents in enumerate(agent_maps)
    ]


async def baseline(duel: Duel, episodes: list[HeldOutEpisode], said: Iterable[str], cut: bool = False) -> float | None:
    services = cast(Services, SimpleNamespace(environments=duel, rollout=duel, baselines=ConstantBaselines()))
    lease: Any = SimpleNamespace(environment="duel", environment_version="v1", config={}, cut=cut, data=None, digest="")
    return await ConstantAnswers(services, "player").baseline(lease, episodes, said)


async def test_a_constant_player_wins_what_its_opponent_lets_it() -> None:
    duel, rotated = Duel(), held_out(dict(first="player", second="old"), dict(first="old", second="player"))
    assert await baseline(duel, rotated, ["9", "7", "9"]) == 1.0
    assert await baseline(duel, rotated, ["5"]) == 0.5 and await baseline(duel, rotated, ["3"]) == 0.0
    assert set(duel.asks) == {"old"}, "the measured policy is not asked"


async def test_few_texts_are_tried_where_others_speak() -> None:
    duel = Duel()
    await baseline(duel, held_out(dict(first="player", second="old")), map(str, range(10, 40)))
    assert len(set(duel.names)) == len(duel.names) == MOST_BESIDE + len(USUAL_BESIDE)


@pytest.mark.parametrize("agents", [{}, dict.fromkeys(AGENTS, "player")])
async def test_where_nobody_else_speaks_no_model_is_asked(agents: dict[str, str]) -> None:
    duel = Duel()
    match = Match(agents, {})
    alone = [HeldOutEpisode(EpisodeSpec("eval", 0, 0, 0), match, cast(Any, None))]
    assert await baseline(duel, alone, ["9"]) == 0.5 and not duel.names


async def test_tasks_on_other_rows_share_no_baseline() -> None:
    """The rows that a task names are no parameter of its environment."""
    baselines, scores = ConstantBaselines(), []
    for path, digest in (("a.jsonl", "d1"), ("b.jsonl", "d1"), ("a.jsonl", "d2"), ("a.jsonl", "d2")):
        duel = Duel()
        services = cast(Services, SimpleNamespace(environments=duel, rollout=duel, baselines=baselines))
        lease: Any = SimpleNamespace(
            environment="duel", environment_version="v1", config={}, cut=False, data={"path": path}, digest=digest
        )
        alone = [HeldOutEpisode(EpisodeSpec("eval", 0, 0, 0), Match({}, {}), cast(Any, None))]
        plays = duel.plays
        await ConstantAnswers(services, "player").baseline(lease, alone, ["9"])
        scores.append(duel.plays - plays)
    assert scores[:3] == [6, 6, 6] and scores[3] == 0, "the same rows are measured once"


async def test_what_was_cut_off_is_measured_again() -> None:
    with pytest.raises(Replaced):
        await baseline(Duel(), held_out(dict(first="player", second="old")), ["9"], cut=True)


async def test_an_agent_that_nobody_asks_has_no_baseline() -> None:
    assert await baseline(Duel(), held_out({"first": "old", "second": "old", "third": "player"}), ["9"]) is None


async def test_each_conversation_numbers_its_replies() -> None:
    constant = Constant("x", None)
    turns = [
        (await constant(ask)).turn
        for ask in (asked("a"), asked("a"), asked("b"), asked("a", 1, Fork("a", 0, 2)), asked("a", 1))
    ]
    assert turns == [0, 1, 0, 2, 3] and constant.asked == {"a", "b"}
    assert constant.score(EpisodeOutcome("ok", {"a": 1.0, "b": 0.0, "silent": 1.0})) == 0.5
    assert constant.score(EpisodeOutcome("error")) is None


async def test_a_text_that_mostly_fails_has_no_baseline() -> None:
    """One success among failures would be a baseline that no policy beats."""

    class Failing(Duel):
        async def run_episode(self, play: Any, spec: EpisodeSpec, roles: Any, name: str) -> Any:
            finished = await super().run_episode(play, spec, roles, name)
            return SimpleNamespace(outcome=EpisodeOutcome("error")) if spec.index > 0 else finished

    games = [dict(first="player", second="old")] * 4
    assert await baseline(Failing(), held_out(*games), ["9"]) is None
    assert await baseline(Duel(), held_out(*games), ["9"]) == 1.0
