"""What a policy would score if it always said the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.baselines import ConstantBaselines
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import Replaced
from marlaas.engine.machine.services import Services
from marlaas.engine.rollout.programs import canned
from marlaas.engine.train.held_out import Constant, HeldOutEpisode, constant_baseline
from marlaas.engine.train.selfplay import Match
from marlaas.plugins.messages import Answer, Ask, Fork, Message

AGENTS = ("first", "second")


def asked(agent: str, branch: int = 0, fork: Fork | None = None) -> Ask:
    return Ask(agent, (Message("user", "?"),), branch=branch, fork=fork)


@dataclass
class Duel:
    """Higher numbers win. Stands for the environments and for the rollout; ``failing`` instances have no reward."""

    failing: int = 0
    episodes: int = 0

    async def play(self, _lease: Any, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        self.episodes += 1
        if spec.index >= 4 - self.failing:
            return EpisodeOutcome("error")
        texts = [(await answer(asked(agent))).text for agent in AGENTS]
        said = [int(text) if text.isdigit() else -1 for text in texts]
        rewards = [0.5 if said[0] == said[1] else float(mine == max(said)) for mine in said]
        return EpisodeOutcome("ok", dict(zip(AGENTS, rewards, strict=True)))

    def canned(self, answer: Answer) -> AbstractContextManager[Answering]:
        return canned(None, answer)


def held_out(agents: Mapping[str, str], count: int = 1) -> list[HeldOutEpisode]:
    match = Match(agents, {})
    return [HeldOutEpisode(EpisodeSpec("eval", index, 0, 0), match, cast(Any, None)) for index in range(count)]


async def baseline(duel: Duel, episodes: list[HeldOutEpisode], known: Any = None, **lease: Any) -> float | None:
    baselines = known or ConstantBaselines()
    services = cast(Services, SimpleNamespace(environments=duel, rollout=duel, baselines=baselines))
    facts = dict(environment="duel", environment_version="v1", config={}, cut=False, data=None, digest="") | lease
    return await constant_baseline(services, "player", cast(Any, SimpleNamespace(**facts)), episodes, ["9"])


@pytest.mark.parametrize("agents", [{}, dict.fromkeys(AGENTS, "player")])
async def test_no_model_is_asked(agents: dict[str, str]) -> None:
    assert await baseline(Duel(), held_out(agents)) == 0.5


async def test_where_others_speak_there_is_no_baseline() -> None:
    duel = Duel()
    assert await baseline(duel, held_out(dict(first="player", second="old"))) is None and not duel.episodes


async def test_tasks_on_other_rows_share_no_baseline() -> None:
    """The rows that a task names are no parameter of its environment."""
    baselines, scores = ConstantBaselines(), []
    for path, digest in (("a.jsonl", "d1"), ("b.jsonl", "d1"), ("a.jsonl", "d2"), ("a.jsonl", "d2")):
        duel = Duel()
        await baseline(duel, held_out({}), baselines, data={"path": path}, digest=digest)
        scores.append(duel.episodes)
    assert scores[:3] == [6, 6, 6] and scores[3] == 0, "the same rows are measured once"


async def test_what_was_cut_off_is_measured_again() -> None:
    with pytest.raises(Replaced):
        await baseline(Duel(), held_out({}), cut=True)


async def test_each_conversation_numbers_its_replies() -> None:
    constant = Constant("x")
    turns = [
        (await constant(ask)).turn
        for ask in (asked("a"), asked("a"), asked("b"), asked("a", 1, Fork("a", 0, 2)), asked("a", 1))
    ]
    assert turns == [0, 1, 0, 2, 3] and constant.asked == {"a", "b"}
    assert constant.score(EpisodeOutcome("ok", {"a": 1.0, "b": 0.0, "silent": 1.0})) == 0.5
    assert constant.score(EpisodeOutcome("error")) is None


async def test_a_text_that_mostly_fails_has_no_baseline() -> None:
    """One success among failures would be a baseline that no policy beats."""
    assert await baseline(Duel(failing=3), held_out({}, 4)) is None
    assert await baseline(Duel(), held_out({}, 4)) == 0.5
