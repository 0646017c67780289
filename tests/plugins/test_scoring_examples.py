"""The examples with a score and a ranking of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.plugins import Environment, Episode, Member, Message, Reply, Transcript
from marlaas.plugins.host.loading import load
from marlaas.plugins.messages import Ask

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Environment:
    return load(EXAMPLES / f"{name}.py")[name]


def said(text: str) -> Transcript:
    return Transcript({"agent": (Message("user", "?"), Message("assistant", text))})


async def asked(environment: Environment, answer: str, **given: object) -> tuple[str, object]:
    """The prompt, and what the environment returns for an answer."""
    prompts = []

    async def model(ask: Ask) -> Reply:
        prompts.append(ask.messages[0].content)
        return Reply(answer, "stop", 0)

    result = await environment(Episode(model), **given)
    return prompts[0], result


@pytest.mark.parametrize(
    ("text", "value", "exact", "named"),
    [
        ("Rome", 1.0, True, True),
        ("It is ROME.", 0.5, False, True),
        ("Paris", 0.0, False, False),
        ("", 0.0, False, False),
    ],
)
async def test_capitals(text: str, value: float, exact: bool, named: bool) -> None:
    capitals = example("capitals")
    row = next(row for row in capitals.data("train") if row["capital"] == "Rome")  # type: ignore[operator, misc]
    assert await asked(capitals, text, task=row) == ("The capital of Italy, in one word:", None)
    assert capitals.scorer is not None
    score = capitals.scorer(row, said(text))
    assert (score.value, score.parts) == (value, {"exact": exact, "named": named})


async def test_shortest() -> None:
    shortest = example("shortest")
    prompt, right = await asked(shortest, "0")
    assert right is (sum(map(int, prompt.rstrip("=").split("+"))) == 0)
    assert shortest.ranker is not None
    group = [Member(None, said(text), {"agent": own}) for text, own in (("7", 1.0), ("3", 0.0), ("So 7", 1.0))]
    assert shortest.ranker(group) == [1.0, 0.0, 0.25]
    assert shortest.ranker(group[1:2]) == [0.0]
