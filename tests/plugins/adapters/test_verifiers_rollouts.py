"""What is ours in playing rollouts of verifiers: its messages become ours, its rows become splits."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from marlaas.plugins import Message, ToolCall
from marlaas.plugins.adapters.verifiers_rollouts import _raised, as_message, rows_of, text_of, watch


def test_messages_of_either_form() -> None:
    call = SimpleNamespace(id="c1", name="add", arguments='{"a": 1}')
    said = SimpleNamespace(role="assistant", content=None, tool_calls=[call])
    assert as_message(said, {}) == Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),))
    answered = {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c1"}
    assert as_message(answered, {"c1": "add"}) == Message("tool", "1", name="add")
    with pytest.raises(ValueError, match="more than text"):
        text_of([{"type": "image_url", "image_url": {"url": "x"}}])


def environment(train: list[dict[str, Any]], held: list[dict[str, Any]] | None) -> Any:
    """As the library's: it evaluates on the training rows where there are no others."""
    return SimpleNamespace(
        eval_dataset=held, get_dataset=lambda: train, get_eval_dataset=lambda: train if held is None else held
    )


def test_no_row_is_in_both_splits() -> None:
    rows = [{"prompt": str(number % 30), "example_id": number} for number in range(60)]
    parts = {split: rows_of(environment(rows, None), split, "sums") for split in ("train", "eval")}
    prompts = {split: {row["prompt"] for row in part} for split, part in parts.items()}
    assert not prompts["train"] & prompts["eval"] and len(prompts["eval"]) == 3
    assert len(parts["train"]) + len(parts["eval"]) == 60

    held = [{"prompt": "7", "example_id": 0}]
    assert rows_of(environment(rows, held), "eval", "sums") == held
    assert all(row["prompt"] != "7" for row in rows_of(environment(rows, held), "train", "sums"))


async def test_functions_that_raise_are_seen_episode_by_episode() -> None:
    def exact(completion: str, answer: str) -> float:
        return float(int(completion) == int(answer))

    async def half(completion: str) -> float:
        return 0.5

    inner = SimpleNamespace(funcs=[half])
    rubric = SimpleNamespace(funcs=[exact, exact], weights=[0.5, 0.0], rubrics=[inner])
    watch(rubric)
    assert list(inspect.signature(rubric.funcs[0]).parameters) == ["completion", "answer"]
    assert await inner.funcs[0]("x") == 0.5

    async def episode(completion: str) -> list[tuple[str, bool]]:
        raised: list[tuple[str, bool]] = []
        _raised.set(raised)
        with contextlib.suppress(ValueError):
            await rubric.funcs[0](completion, "4")
        with contextlib.suppress(ValueError):
            await rubric.funcs[1](completion, "4")
        return raised

    found = await asyncio.gather(asyncio.create_task(episode("4")), asyncio.create_task(episode("four")))
    assert found[0] == [] and [pays for _, pays in found[1]] == [True, False], "a metric is no part of the reward"
    assert found[1][0][0].startswith("exact raised ValueError: invalid literal")
