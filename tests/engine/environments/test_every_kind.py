"""Each kind of environment of the load test, alone and at leisure: it pays what its question and the reply say."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.plugins.messages import Ask, Reply, ToolCall

from ...slow.kinds import KINDS, fails, graded
from .conftest import World, a_spec

pytestmark = pytest.mark.processes

EPISODES = 12


@pytest.mark.parametrize("kind", KINDS)
async def test_it_pays_by_question_and_reply_alone(world: World, kind: str) -> None:
    world.save(f"{kind}.py", KINDS[kind])
    await world.service.start()
    questions: dict[int, str] = {}

    def said(index: int) -> str:
        return f"{index * index}\n'\"é"

    async def episode(index: int) -> tuple[str, float | None]:
        async def answer(ask: Ask) -> Reply:
            heard = ask.messages[-1]
            questions.setdefault(index, heard.content)
            calls = kind == "tools" and index % 2 == 0
            assert heard.role == "user" or (calls and heard.content.isdigit())
            if calls and heard.role == "user":
                return Reply("", "tool", 0, (ToolCall("calc", {"expression": "1+1"}),))
            return Reply(said(index), "stop", 0)

        outcome = await world.service.play(lease, a_spec(index=index), answer)
        return outcome.status, next(iter(outcome.rewards.values()), None)

    with await world.service.bind(f"{kind}/{kind}") as lease:
        found = await asyncio.gather(*map(episode, range(EPISODES)))
    assert len(set(questions.values())) > EPISODES / 2
    raising = [index for index in range(EPISODES) if kind == "raising" and fails(questions[index], said(index))]
    assert bool(raising) == (kind == "raising")
    for index, ended in enumerate(found):
        right = ("error", None) if index in raising else ("ok", graded(questions[index], said(index)))
        assert ended == right, (index, questions[index])
