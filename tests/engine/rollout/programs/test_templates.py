"""Programs and the templates of real bases: what the model reads is what its template writes, with sampled tokens."""

from __future__ import annotations

import json
from typing import cast

import pytest

from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.wire import Message

from ..talking import FAMILIES, Parrot, letters
from .stage import LOOK, Caller, Line, Stage, Witness, heard, ids, results, system, user

LONG = SamplingParameters("v1", 1, 1.0, max_tokens=400, max_episode_tokens=10_000, seed=7)
CALL = {"name": "look", "arguments": {"at": [1, 2], "by": "x"}}


def stage_of(renderer: Renderer) -> tuple[Stage, Parrot]:
    parrot = Parrot(context=20_000)
    return Stage(cast(Witness, parrot), cast(Caller, renderer), sampling=LONG), parrot


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_goes_on_is_read_as_the_template_writes_it(families: dict[str, Renderer], family: str) -> None:
    """Its tokens are those that were sampled, letter by letter, which no tokenizer writes."""
    renderer = families[family]
    stage, parrot = stage_of(renderer)

    async def program(line: Line) -> None:
        messages = [system("be brief"), user("Hi <|im_end|>")]
        for text in ("one", "two"):
            parrot.saying = letters(renderer, f"answer {text}")
            answered = await line.chat(*messages)
            assert answered.choices[0].text == f"answer {text}" and ids(answered) == parrot.saying
            messages += [heard(answered), user(text)]

    played = await stage.play(program)
    first, second = (request.tokens.tolist() for request in parrot.requests)
    reply = letters(renderer, "answer one")
    if not renderer.rewrites:
        assert second[: len(first) + len(reply)] == first + reply
        assert [len(trajectory.spans) for trajectory in played.episode.trajectories] == [2]
    shown = renderer.vocabulary.decode(second)
    said = [("system", "be brief"), ("user", "Hi <|im_end|>"), ("assistant", "answer one"), ("user", "one")]
    assert shown == renderer.template.render([{"role": role, "content": text} for role, text in said], None, None)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
async def test_calls_of_tools_go_on_as_they_were_written(families: dict[str, Renderer], family: str) -> None:
    renderer = families[family]
    stage, parrot = stage_of(renderer)

    async def program(line: Line) -> None:
        written = f"Well.\n<tool_call>\n{json.dumps(CALL, indent=2)}\n</tool_call>"
        thought = "<think>\nhm\n</think>\n\n" if renderer.thinks else ""
        parrot.saying = [*renderer.vocabulary.encode(thought + written), renderer.stop_ids[-1]]
        answered = await line.chat(user("x"), tools=(LOOK,))
        (choice,) = answered.choices
        (call,) = choice.tool_calls
        assert choice.finish == "tool" and (call.name, json.loads(call.arguments)) == ("look", CALL["arguments"])
        assert choice.thinking == ("hm" if renderer.thinks else "")
        said = heard(answered)
        stripped = Message("assistant", said.content.strip(), tool_calls=said.tool_calls)
        first = parrot.saying
        parrot.saying = [*renderer.vocabulary.encode("done"), renderer.stop_ids[-1]]
        await line.chat(user("x"), stripped, *results(stripped), tools=(LOOK,))
        prompt = parrot.requests[-1].tokens.tolist()
        kept = renderer.vocabulary.encode(written)
        assert any(prompt[place : place + len(kept)] == kept for place in range(len(prompt))), first
        assert "seen" in renderer.vocabulary.decode(prompt)

    played = await stage.play(program)
    assert [len(t.spans) for t in played.episode.trajectories] == ([1, 1] if len(parrot.requests) > 2 else [2])


async def test_plain_prompts_are_tokens_of_the_text_alone(families: dict[str, Renderer]) -> None:
    renderer = families["qwen2.5"]
    stage, parrot = stage_of(renderer)
    parrot.saying = letters(renderer, "upon a time")

    async def program(line: Line) -> None:
        first = await line.complete("Once ", stop=("a",), max_tokens=8)
        assert first.choices[0].text == "upon " and first.choices[0].finish == "stop"
        await line.complete("Once upon a, then")
        await line.complete("Once upon b")

    played = await stage.play(program)
    prompts = [request.tokens.tolist() for request in parrot.requests]
    assert prompts[0] == renderer.vocabulary.encode("Once ")
    assert prompts[1] == prompts[0] + letters(renderer, "upon a", end=False) + renderer.vocabulary.encode(", then")
    assert prompts[2] == renderer.vocabulary.encode("Once upon b")
    assert [len(trajectory.spans) for trajectory in played.episode.trajectories] == [2, 1]


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3"])
async def test_a_forced_call_is_read_as_the_template_writes_calls(families: dict[str, Renderer], family: str) -> None:
    """The model writes bare JSON, and what follows reads a call; both are conversations of their own."""
    renderer = families[family]
    stage, parrot = stage_of(renderer)
    stage.split = "eval"

    async def program(line: Line) -> None:
        parrot.saying = letters(renderer, "well")
        messages = [user("x")]
        messages += [heard(await line.chat(*messages, tools=(LOOK,))), user("now")]
        parrot.saying = [*renderer.vocabulary.encode(json.dumps(CALL)), renderer.stop_ids[-1]]
        answered = await line.chat(*messages, tools=(LOOK,), tool_choice="required")
        (choice,) = answered.choices
        assert (choice.text, choice.thinking, choice.finish) == ("", "", "tool")
        (call,) = choice.tool_calls
        assert call.name == "look" and json.loads(call.arguments) == CALL["arguments"]
        said = heard(answered)
        parrot.saying = letters(renderer, "done")
        await line.chat(*messages, said, *results(said), tools=(LOOK,))
        parrot.saying = [*renderer.vocabulary.encode(json.dumps(CALL)[:-2])]
        answered = await line.chat(*messages, tools=(LOOK,), tool_choice="tool:look")
        assert not answered.choices[0].tool_calls, "cut off, it is no call"

    played = await stage.play(program)
    assert played.episode.status == "ok"
    first, forced, following, _ = parrot.requests
    assert first.wishes is None and forced.wishes is not None and "look" in forced.wishes.schema
    assert following.wishes is None
    shown = renderer.vocabulary.decode(following.tokens.tolist())
    assert shown.count('"look"') == 1 + renderer.vocabulary.decode(forced.tokens.tolist()).count('"look"')
    if family != "llama3":
        assert "<tool_call>" in shown[shown.index("now") :]
