"""Templates that rewrite earlier turns: further trajectories, in which replies stand as the ids that were sampled."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given, settings, strategies as st

from marlaas.engine.rollout.renderer import Renderer
from marlaas.plugins.messages import Message

from ...examples import examples
from .talking import FAMILIES, Talk, contains, letters

TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {}}}},)
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
RESULT = (Message("tool", "4", name="add"),)


def template_text(talk: Talk, messages: list[dict[str, Any]]) -> str:
    """What the template makes of a conversation in which all replies are plain text."""
    thinking = talk.conversation.sampling.thinking
    return talk.renderer.template.render(messages, None, thinking)


def test_rewriting_is_known_and_said(families: dict[str, Renderer], deep: Renderer) -> None:
    rewriting = {name: renderer.rewrites for name, renderer in families.items()} | {"deep": deep.rewrites}
    assert rewriting == {"qwen2": False, "qwen2.5": False, "qwen3": True, "llama3": False, "deep": True}
    assert "rewrites earlier turns" in families["qwen3"].warning and not families["qwen2.5"].warning


async def test_a_rewritten_conversation_goes_on_in_another_trajectory(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"])
    renderer = talk.renderer
    close = renderer.vocabulary.added["</think>"]
    texts = ["the answer is four", "the answer is five", "the answer is six"]
    said = [letters(renderer, f"<think>\nthe thought\n</think>\n\n{text}") for text in texts]
    for number, reply in enumerate(said):
        await talk.say(f"question {number}", reply)
    parts = talk.conversation.trajectories(0.5)
    assert len(parts) == 3 and all(part.reward == 0.5 and len(part.spans) == 1 for part in parts)
    for part, reply in zip(parts, said, strict=True):
        assert part.tokens[part.mask == 1].tolist() == reply
        assert part.logprobs[part.mask == 1].tolist() == [-float(n + 1) for n in range(len(reply))]
    answers = [reply[reply.index(close) + 1 :][2:] for reply in said]  # behind the two line breaks
    assert renderer.vocabulary.encode(texts[0]) != answers[0][:-1]  # tokenising again would be noticed
    for number, part in enumerate(parts):
        given = part.tokens[part.mask == 0].tolist()
        assert [contains(given, answer) for answer in answers] == [True] * number + [False] * (3 - number)
        assert close not in given
    assert [[role for role, _ in t.turns] for t in talk.conversation.transcripts()] == [
        ["user", "thinking", "assistant"]
    ] * 3


async def test_results_within_one_question_are_appended(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"])
    thought = "<think>\nb\n</think>\n\n"
    await talk.say("1+3?", letters(talk.renderer, thought + HERMES), TOOLS)
    await talk.say(RESULT, letters(talk.renderer, thought + HERMES))
    await talk.say(RESULT, letters(talk.renderer, thought + "4"))
    assert len(talk.conversation.trajectories(1.0)) == 1
    await talk.say("Thanks.", letters(talk.renderer, thought + "!"))
    parts = talk.conversation.trajectories(1.0)
    assert [len(part.spans) for part in parts] == [3, 1]
    transcripts = [turn for transcript in talk.conversation.transcripts() for turn in transcript.turns]
    assert [text for role, text in transcripts if role == "user"] == ["1+3?", "Thanks."]


async def test_each_trajectory_has_noise_and_memory_of_its_own(families: dict[str, Renderer]) -> None:
    asked = []
    for _ in range(2):
        talk = Talk(families["qwen3"])
        for number in range(3):
            await talk.say(f"{number}?", letters(talk.renderer, "<think>\nb\n</think>\n\nc"))
        asked.append([(request.conversation, request.seed) for request in talk.sampler.requests])
        assert talk.sampler.released == ["e/0", "e/0.1"] and talk.conversation.name == "e/0.2"
    assert asked[0] == asked[1] and [name for name, _ in asked[0]] == ["e/0", "e/0.1", "e/0.2"]
    assert len({seed for _, seed in asked[0]}) == 3


async def test_tokens_are_counted_over_all_trajectories(families: dict[str, Renderer]) -> None:
    said = letters(families["qwen3"], "<think>\nb\n</think>\n\nc")
    talk = Talk(families["qwen3"], episode=2 * len(said) + 3)
    replies = [await talk.say(f"{number}?", said) for number in range(4)]
    assert [reply.finish for reply in replies] == ["stop", "stop", "length", "length"]
    parts = talk.conversation.trajectories(1.0)
    assert [int(part.mask.sum()) for part in parts] == [len(said), len(said), 3]
    asked = [text for t in talk.conversation.transcripts() for role, text in t.turns if role == "user"]
    assert asked == ["0?", "1?", "2?", "3?"]


async def test_a_history_that_no_longer_fits_ends_the_conversation(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"], context=80)
    said = letters(talk.renderer, "<think>\nb\n</think>\n\nc")
    await talk.say("0?", said)
    reply = await talk.say("x" * 200, said)
    assert (reply.text, reply.finish, reply.turn) == ("", "length", 1)
    assert len(talk.conversation.trajectories(1.0)) == len(talk.conversation.transcripts()) == 1
    assert talk.conversation.transcripts()[0].turns[-1] == ("user", "x" * 200)


words = st.text("the answer is four\u00e9\U0001f600", min_size=1, max_size=12).map(str.strip).filter(bool)
turns = st.lists(st.tuples(st.booleans(), st.one_of(st.none(), words), words), min_size=2, max_size=5)


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from((*FAMILIES[1:], "deep")), st.sampled_from((None, False)), turns)
def test_prompts_are_the_templates_and_replies_are_the_models(
    families: dict[str, Renderer],
    deep: Renderer,
    family: str,
    thinking: bool | None,
    turns: list[tuple[bool, str | None, str]],
) -> None:
    """Whatever is said: every prompt reads as the template writes the conversation, and every sampled id is trained on
    once, in the trajectory that holds its context."""
    talk = Talk(deep if family == "deep" else families[family], thinking=thinking)
    messages: list[dict[str, Any]] = []
    said = []
    for number, (result, thought, answer) in enumerate(turns):
        news = Message("tool" if result and number else "user", f"{number}?")
        reply = answer
        if family == "deep":
            reply = f"{thought or ''}\n</think>\n\n{answer}"
        elif family == "qwen3" and thought is not None:
            reply = f"<think>\n{thought}\n</think>\n\n{answer}"
        said.append(letters(talk.renderer, reply))
        messages.append({"role": news.role, "content": news.content})
        asyncio.run(talk.say([news], said[-1]))
        assert talk.seen[-1] == template_text(talk, messages)
        messages.append({"role": "assistant", "content": reply})
    parts = talk.conversation.trajectories(1.0)
    sampled = [part.tokens[span.start : span.stop].tolist() for part in parts for span in part.spans]
    assert sampled == said
    assert [int(part.mask.sum()) for part in parts] == [
        sum(span.stop - span.start for span in part.spans) for part in parts
    ]
    assert len(parts) == {"qwen3": len(parts), "deep": len(turns)}.get(family, 1)
    for prompt, (before, after) in zip(talk.prompts[1:], pairwise(talk.sampler.requests), strict=True):
        if before.conversation == after.conversation:  # its memory may only grow
            assert prompt[: len(before.tokens)] == before.tokens.tolist()
