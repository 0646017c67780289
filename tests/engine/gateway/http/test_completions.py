"""Completions, over HTTP: what evaluators send."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine.gateway.http.openai import Completions

from .scripted import echo, gateway, refusal_of

PATH = "/v1/completions"


async def test_token_prompts_in_a_batch_with_echo_and_likelihoods() -> None:
    body = {"model": "base", "prompt": [[5, 6], [5, 6, 7]], "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1}
    async with gateway(echo) as client:
        status, answer = await client.post(PATH, body)
        asked = client.engine.asked[0]
    assert status == 200
    assert asked.prompts == ((5, 6), (5, 6, 7)) and asked.echo
    assert asked.wishes.logprobs and asked.wishes.top_logprobs == 1 and asked.wishes.max_tokens == 1
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["he", "llo"],
        "token_logprobs": [None, -1.25],
        "top_logprobs": [None, {"y": -0.25, "llo": -1.25}],
        "text_offset": [0, 2],
    }


async def test_a_stream_has_offsets_that_go_on() -> None:
    body = {"model": "base", "prompt": "Say", "stream": True, "logprobs": 2, "stream_options": {"include_usage": True}}
    async with gateway(echo) as client:
        events = await client.stream(PATH, body)
    assert events.pop() == ("", None)
    assert events.pop()[1]["usage"]["total_tokens"] == 18
    rows = [data["choices"][0] for _, data in events]
    assert "".join(row["text"] for row in rows) == "hello"
    assert [at for row in rows if row["logprobs"] for at in row["logprobs"]["text_offset"]] == [0, 2]
    assert rows[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * 1000, "n": 100}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], where: str) -> None:
    assert refusal_of(Completions, {"model": "base", "prompt": "x", **change}).where == where


@pytest.mark.parametrize(("sent", "asked"), [("x", ("x",)), ([1, 2], ((1, 2),)), (["a", "b"], ("a", "b"))])
async def test_each_form_of_a_prompt(sent: object, asked: object) -> None:
    async with gateway(echo) as client:
        await client.post(PATH, {"model": "base", "prompt": sent})
        assert client.engine.asked[0].prompts == asked
        assert client.engine.asked[0].wishes.max_tokens == 16
