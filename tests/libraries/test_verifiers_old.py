"""The old form of the real verifiers: modules with ``load_environment``, dropped as they are."""

from __future__ import annotations

import pytest

from marlaas.plugins.messages import Ask

from .conftest import PATIENCE, PublishedVersions, calling

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

HEAD = """
# /// script
# dependencies = ["verifiers==0.1.14"]
# ///
import verifiers as vf
from datasets import Dataset
"""
ROWS = 'Dataset.from_list([{"question": f"{a}+{b}?", "answer": str(a + b)} for a in range(5) for b in range(6)])'
GAME = f"""{HEAD}

class Game(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{{"role": "user", "content": "again"}}]

    @vf.stop
    async def solved(self, state):
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1].content == state["answer"]


async def right(completion, answer) -> float:
    return float(completion[-1].content == answer)


async def length(completion) -> float:
    return len(completion)


def number(completion) -> float:
    return int(completion[-1].content)


def load_environment():
    rubric = vf.Rubric(funcs=[right, length, number], weights=[1.0, 0.0, 0.0])
    return Game(dataset={ROWS}, rubric=rubric, max_turns=4, system_prompt="Add.")
"""
TOOLS = f"""{HEAD}

def add(a: int, b: int) -> int:
    \"\"\"Adds two numbers.

    Args:
        a: the first
        b: the second
    \"\"\"
    return a + b


async def used(completion, answer) -> float:
    return float(completion[-1].content == answer and any(m.role == "tool" for m in completion))


def load_environment():
    return vf.ToolEnv(dataset={ROWS}, tools=[add], rubric=vf.Rubric(funcs=[used]), max_turns=4)
"""
GROUPS = f"""{HEAD}

def best(completions, **kwargs) -> list[float]:
    return [1.0 for _ in completions]


def load_environment():
    return vf.SingleTurnEnv(dataset={ROWS}, rubric=vf.Rubric(funcs=[best]))
"""
SHORTENED = GAME.replace(
    "    @vf.stop",
    """    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages[:2] if len(messages) > 4 else messages

    @vf.stop""",
)


def added(ask: Ask) -> tuple[int, int]:
    """The two numbers of the question, which only a first ask holds."""
    a, _, b = ask.messages[-1].content.rstrip("?").partition("+")
    return int(a), int(b)


async def test_environments(published: PublishedVersions) -> None:
    refused = await published.add("groups", GROUPS)
    assert refused is not None and "has rewards for groups, which are not supported" in refused.message
    for name, text in {"game": GAME, "tools": TOOLS, "shortened": SHORTENED}.items():
        assert await published.add(name, text) is None

    asks: list[Ask] = []

    def solves(ask: Ask) -> str:
        asks.append(ask)
        return str(sum(added(asks[0]))) if len(asks) == 3 else "0"

    outcome = await published.episode("game/game", solves, index=11)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure
    assert outcome.metrics["num_turns"] == 3 and outcome.metrics["length"] == 5
    assert outcome.metrics["scorer_raised"] == 0
    assert [[message.role for message in ask.messages] for ask in asks] == [["system", "user"], ["user"], ["user"]]
    outcome = await published.episode("game/game", lambda ask: "no")
    assert (outcome.rewards, outcome.metrics["num_turns"]) == ({"agent": 0.0}, 4)
    assert outcome.metrics["scorer_raised"] == 1, "int() of a text"

    train, held_out = [await published.prompts("game/game", split, 30) for split in ("train", "eval")]
    assert not train & held_out and (len(train), len(held_out)) == (27, 3)

    asks.clear()

    def calls(ask: Ask) -> object:
        asks.append(ask)
        if len(asks) == 1:
            a, b = added(ask)
            return calling("add", a=a, b=b)
        return ask.messages[-1].content

    outcome = await published.episode("tools/tools", calls)  # type: ignore[arg-type]
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure
    (tool,) = asks[0].tools
    assert tool["function"]["name"] == "add" and set(tool["function"]["parameters"]["properties"]) == {"a", "b"}
    assert [(message.role, message.name) for message in asks[1].messages] == [("tool", "add")]

    asks.clear()

    def refuses(ask: Ask) -> str:
        asks.append(ask)
        return "no"

    outcome = await published.episode("shortened/shortened", refuses)
    assert outcome.status == "ok", outcome.failure
    assert [ask.branch for ask in asks][:2] == [0, 0] and asks[2].branch > 0, "a history that was cut is a branch"
