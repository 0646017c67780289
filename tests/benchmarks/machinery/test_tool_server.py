"""The tool that benchmarked environments call is a real server, and really computes."""

from __future__ import annotations

import json

import pytest

from benchmarks.machinery.tool_server import answer, tool_server
from benchmarks.plugins.tools import Calculator, tools
from marlaas.plugins import Episode
from marlaas.plugins.messages import Ask, Reply


def test_an_answer_is_the_sum_and_a_verdict() -> None:
    wait, body = answer("/add?left=47&right=85&said=132&wait=0.25")
    assert wait == 0.25 and json.loads(body) == {"sum": 132, "right": True}
    assert json.loads(answer("/add?left=47&right=85&said=%20132&wait=0")[1])["right"] is False
    for odd in ("/add?left=47&said=1&wait=0", "/add?left=x&right=1&said=1&wait=0", "/"):
        with pytest.raises((KeyError, ValueError)):
            answer(odd)


@pytest.mark.processes
async def test_an_episode_calls_the_tool_with_what_the_model_said() -> None:
    sums: list[tuple[int, int]] = []

    async def reply(ask: Ask) -> Reply:
        a, b = (int(each) for each in ask.messages[-1].content.strip("=").split("+"))
        sums.append((a, b))
        return Reply(str(a + b) if len(sums) != 2 else "no & idea?", "stop", len(sums) - 1)

    with tool_server() as address:
        calculator = Calculator(address)
        said = ("5", "6", "", "a b&c=d")
        assert [await calculator.judge(2, 3, each, 0.0) for each in said] == [True, False, False, False]
        calculator.close()
        episode = Episode(reply, split="train", index=3, seed=1, member=0)
        reward = await tools(episode, mean=0.001, tool=address)
    turns = len(sums)
    assert reward == (turns - 1) / turns, "all but the second reply are right"
