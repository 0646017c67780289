"""Rows on their way from a file to an episode, through a real process."""

from __future__ import annotations

import json

import pytest

from marlaas.engine.environments.protocol import DataFacts
from marlaas.engine.errors import EnvironmentFailure
from marlaas.plugins.data import Survey

from .conftest import World

pytestmark = pytest.mark.processes

TOPICS = """
from marlaas.plugins import env

@env(data="topics.{split}.jsonl")
async def topics(ep, task):
    await ep.ask(task["topic"])
    ep.log(topic=task["topic"], number=task["number"])
    return 1

@env
async def endless(ep):
    await ep.ask("x")
    return 1

@env(data=lambda split: [1, 2, 3])
async def listed(ep, task):
    await ep.ask(str(task))
    ep.log(number=task)
    return 1

@env(data="gone.jsonl")
async def gone(ep, task, needed: int):
    return 1
"""


def save(world: World, rows: int = 40) -> None:
    """Four topics, one after the other, in both splits."""
    table = [{"topic": "abcd"[4 * n // rows], "number": n} for n in range(rows)]
    for split in ("train", "eval"):
        world.save(f"topics.{split}.jsonl", "".join(json.dumps(row | {"of": split}) + "\n" for row in table))
    world.save("topics.py", TOPICS)


async def drawn(world: World, name: str, log: str, count: int, **spec: object) -> list[float | str]:
    return [(await world.play(f"topics/{name}", index=index, **spec)).metrics[log] for index in range(count)]


async def test_a_sorted_file_is_shuffled_by_seed_and_epoch(world: World) -> None:
    save(world)
    await world.service.start()
    first = await drawn(world, "topics", "number", 80)
    assert sorted(first[:40]) == sorted(first[40:]) == list(range(40))
    assert first[:40] != first[40:] != list(range(40))
    assert len(set(await drawn(world, "topics", "topic", 12))) == 4
    assert await drawn(world, "topics", "number", 12, seed=1) != first[:12]
    assert await drawn(world, "topics", "number", 80) == first


async def test_evaluation_covers_all_topics_whatever_the_seed(world: World) -> None:
    save(world)
    await world.service.start()
    topics = await drawn(world, "topics", "topic", 16, split="eval")
    assert set(topics) == set("abcd")
    assert await drawn(world, "topics", "topic", 16, split="eval", seed=5) == topics


async def test_rows_of_a_data_function_are_shuffled_too(world: World) -> None:
    save(world)
    await world.service.start()
    orders = {tuple(await drawn(world, "listed", "number", 3, seed=seed)) for seed in range(8)}
    assert len(orders) > 2 and all(sorted(order) == [1, 2, 3] for order in orders)


async def test_what_is_known_of_rows(world: World) -> None:
    save(world)
    await world.service.start()
    with await world.service.bind("topics/topics") as lease:
        facts = await world.service.facts(lease, survey=True)
        again = await world.service.facts(lease)
    assert (facts.train, facts.held_out) == (40, 40) and len(facts.digest) == 64 and again.digest == facts.digest
    assert facts.survey == Survey({"topic": 4}, repeated=0, shared=0) and again.survey is None
    with await world.service.bind("topics/endless") as lease:
        assert await world.service.facts(lease) == DataFacts()
    gone = await world.service.bind("topics/gone", config={"needed": 1})
    with gone, pytest.raises(EnvironmentFailure, match=r"gone\.jsonl is not part of this plugin"):
        await world.service.facts(gone)
