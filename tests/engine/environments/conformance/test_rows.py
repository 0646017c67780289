"""What a check says about the rows of an environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.environments.conformance.check import Scope, check_version
from marlaas.engine.environments.conformance.checks import check_rows, check_variety
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.protocol import DataFacts
from marlaas.plugins.data import Survey, survey
from marlaas.plugins.data.division import blocks_of

from ..conftest import World
from .scripted import asking, judged


def facts(**found: object) -> DataFacts:
    return DataFacts(1200, 64, "d", Survey(**({"blocks": {}, "repeated": 0, "shared": 0} | found)))  # type: ignore[arg-type]


def test_sound_rows_have_a_note_alone() -> None:
    assert judged(check_rows, facts=facts()) == [
        Finding("rows", "note", "1,200 rows to train on, 64 to evaluate with.")
    ]
    assert judged(check_rows, facts=DataFacts()) == []


def test_an_order_is_told() -> None:
    (note,) = judged(check_rows, facts=facts(blocks={"topic": 4}))
    assert note.level == "note" and "They lie sorted by 'topic' (4 values)" in note.message


def test_shared_and_repeated_rows_are_warned_of() -> None:
    found = [finding for finding in judged(check_rows, facts=facts(shared=3, repeated=5)) if finding.level == "warning"]
    assert [finding.message.partition(":")[0].partition(",")[0] for finding in found] == [
        "3 evaluation rows are train rows",
        "5 evaluation rows are copies of another one",
    ]


def test_rows_that_are_drawn_again_are_no_repeated_prompts() -> None:
    draws = [asking(f"{index % 8}?", "eval", index) for index in range(16)]
    assert judged(check_variety, draws=draws, facts=DataFacts(16, 8)) == [
        Finding("variety", "note", "8 of 8 eval prompts differ.")
    ]
    (warning,) = judged(check_variety, draws=draws, facts=DataFacts(16, 16))
    assert warning.level == "warning" and "Only 8 of 16 eval prompts differ" in warning.message


def test_a_survey_counts_copies_whatever_their_order() -> None:
    train = [{"a": n, "b": 1} for n in range(50)]
    held = [{"b": 1, "a": 3}, {"a": 60, "b": 1}, {"a": 60, "b": 1}, {"a": 61, "b": 1}]
    assert survey(train, held) == Survey({}, repeated=1, shared=1)


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ("aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd", {"topic": 4}),
        ("aaaaabbbbbaaaaabbbbbaaaaabbbbb", {"topic": 2}),
        ("abcdbcadcbadbacdabdcbadcabcdbdacdabcabdc", {}),
        ("aaaaaaaaaaaaaaaaaaaa", {}),
        ("aaaabbbb", {"topic": 2}),
        ("aabb", {}),
    ],
)
def test_blocks_of_equal_values_are_found(topics: str, told: dict[str, int]) -> None:
    assert blocks_of([{"topic": topic, "id": number} for number, topic in enumerate(topics)]) == told


ROWS = """
from marlaas.plugins import env

@env(data="topics.{split}.jsonl")
async def topics(ep, task):
    return (await ep.ask(task["question"])).text == task["answer"]
"""


@pytest.mark.processes
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "never asks"])
async def test_a_check_says_so(world: World, tmp_path: Path, asks: bool) -> None:
    table = [{"question": f"{n}?", "answer": str(n), "topic": "abcd"[n // 10]} for n in range(40)]
    for split, own in (("train", table), ("eval", [*table[:2], {"question": "x?", "answer": "x", "topic": "a"}])):
        world.save(f"topics.{split}.jsonl", "".join(json.dumps(row) + "\n" for row in own))
    world.save("topics.py", ROWS if asks else ROWS.replace("    return", "    return 0.0\n    return"))
    await world.service.start()
    with await world.service.bind("topics/topics", config={}) as lease:
        findings = [one for one in await check_version(lease, Scope(prompts=4)) if one.check == "rows"]
    assert [one.level for one in findings] == ["warning", "note"]
    assert findings[0].message.startswith("2 evaluation rows are train rows, too")
    assert "sorted by 'topic' (4 values)" in findings[1].message
