"""Conversations under real templates: prompts, calls, thoughts, limits, rewritten turns; and a person's talk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.errors import ConfigError
from marlaas.engine.rollout.conversation import Unplayable
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.talk import Manner, Speech, Talk as PersonsTalk
from marlaas.plugins.messages import Ask, Message, ToolCall

from ...examples import examples
from .fake import FakeSampler, FakeVersion
from .fake_renderer import FakeRenderer
from .talking import FAMILIES, Talk, contains, letters

TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {}}}},)

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

LLAMA = '{"name": "add", "parameters": {"a": 1}}'

RESULT = (Message("tool", "4", name="add"),)


def test_a_call_that_waits_ends_a_turn_even_if_no_file_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["llama3"], tmp_path / "base")
    (folder / "generation_config.json").unlink()
    renderer = Renderer(folder)
    control = renderer.vocabulary.control
    assert set(renderer.stop_ids) == {control["<|eot_id|>"], control["<|eom_id|>"]}


def test_rows_of_the_embedding_without_a_token_say_nothing(families: dict[str, Renderer]) -> None:
    """Embeddings have more rows than a tokenizer has tokens."""
    renderer, empty = families["qwen3"], 1600
    assert empty > max(renderer.vocabulary.added.values())
    four = renderer.vocabulary.encode("four")
    assert renderer.parse([empty, *four, empty, *renderer.stop_ids[-1:]]).text == "four"
    assert renderer.parse([empty, empty]).text == ""


async def test_a_call_and_its_result(families: dict[str, Renderer]) -> None:
    for family, call in (("qwen2.5", HERMES), ("qwen3", HERMES), ("llama3", LLAMA)):
        talk = Talk(families[family])
        reply = await talk.say("1+3?", letters(talk.renderer, call), TOOLS)
        assert (reply.text, reply.finish, reply.tool_calls) == ("", "tool", (ToolCall("add", {"a": 1}),)), family
        answer = await talk.say(RESULT, letters(talk.renderer, "It is 4."))
        assert (answer.text, answer.finish) == ("It is 4.", "stop")
        assert len(talk.conversation.trajectories(1.0)) == 1
        first, second = talk.prompts
        said = letters(talk.renderer, call)
        assert second[: len(first) + len(said)] == [*first, *said]
        assert "add" in talk.seen[0] and "4" in talk.seen[1].removeprefix(talk.seen[0])


async def test_a_turn_keeps_the_end_that_the_model_gave_it(families: dict[str, Renderer]) -> None:
    talk = Talk(families["llama3"])
    control = talk.renderer.vocabulary.control
    said = [control["<|python_tag|>"], *letters(talk.renderer, LLAMA, end=False), control["<|eom_id|>"]]
    reply = await talk.say("1+3?", said)
    assert reply.tool_calls == (ToolCall("add", {"a": 1}),)
    await talk.say(RESULT, letters(talk.renderer, "4"))
    first, second = talk.prompts
    assert second[len(first) : len(first) + len(said)] == said
    assert second[len(first) + len(said)] == control["<|start_header_id|>"]


async def test_several_calls_where_one_is_allowed_are_refused(families: dict[str, Renderer]) -> None:
    talk = Talk(families["llama3"])
    two = (ToolCall("add", {}), ToolCall("add", {}))
    with pytest.raises(Unplayable, match="makes one call") as raised:
        await talk.say([Message("user", "1?"), Message("assistant", "", tool_calls=two)], [1])
    assert "\n" not in raised.value.message


async def test_a_thought_is_not_part_of_the_text(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"])
    reply = await talk.say("2+2?", letters(talk.renderer, "<think>\nTwo and two.\n</think>\n\nfour"))
    assert (reply.text, reply.thinking, reply.finish) == ("four", "Two and two.", "stop")
    (transcript,) = talk.conversation.transcripts()
    assert transcript.turns == (("user", "2+2?"), ("thinking", "Two and two."), ("assistant", "four"))
    call = await talk.say("Add.", letters(talk.renderer, f"<think>{HERMES}</think>\n{HERMES}"), TOOLS)
    assert (call.text, call.tool_calls, call.thinking) == ("", (ToolCall("add", {"a": 1}),), HERMES)


async def test_thinking_can_be_switched_off_by_some(families: dict[str, Renderer], deep: Renderer) -> None:
    on, off = Talk(families["qwen3"], thinking=True), Talk(families["qwen3"], thinking=False)
    for talk in (on, off):
        reply = await talk.say("2+2?", letters(talk.renderer, "four"))
        assert (reply.text, reply.thinking) == ("four", "")
    assert on.seen[0].endswith("assistant\n") and off.seen[0] == on.seen[0] + "<think>\n\n</think>\n\n"
    for wanted in (None, True, False):
        families["qwen3"].check_thinking(wanted)
    families["qwen2.5"].check_thinking(False)
    deep.check_thinking(True)
    with pytest.raises(ConfigError, match="knows no thinking"):
        families["qwen2.5"].check_thinking(True)
    with pytest.raises(ConfigError, match="cannot switch it off"):
        deep.check_thinking(False)


async def test_a_text_that_stops_a_reply(families: dict[str, Renderer]) -> None:
    """The reply's ids end where the text is complete; what the model wrote behind it was never said."""
    for family in ("qwen2.5", "qwen3", "llama3"):
        talk = Talk(families[family])
        reply = await talk.say("2+2?", letters(talk.renderer, "four. Next: 3+3"), stop=("Next:", "xy"))
        assert (reply.text, reply.finish) == ("four. ", "stop")
        assert talk.sampler.released == ["e/0"], "its memory holds more than was said"
        await talk.say("And?", letters(talk.renderer, "six"), stop=("xy",))
        assert talk.prompts[1][len(talk.prompts[0]) :][:11] == letters(talk.renderer, "four. Next:", end=False)
        assert " 3+3" not in talk.seen[1] and talk.sampler.released == ["e/0"]
        (trajectory,) = talk.conversation.trajectories(1.0)
        assert [span.stop - span.start for span in trajectory.spans] == [11, 4]
        assert int(trajectory.mask.sum()) == 15 and len(trajectory.logprobs) == len(trajectory.tokens)


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
    assert talk.sampler.released == ["e/0", "e/0.1"] and talk.conversation.name == "e/0.2", "memory of its own"
    assert len({request.seed for request in talk.sampler.requests}) == 3, "and noise"


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
        assert talk.seen[-1] == talk.renderer.template.render(messages, None, thinking)
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


@pytest.mark.parametrize(
    ("replies", "limits", "asked", "cut"),
    [
        pytest.param(("abc",), {}, None, False, id="ended by itself"),
        pytest.param(("abcde",), {}, None, False, id="ended with the last token"),
        pytest.param(("abcdefgh",), {}, None, True, id="cut by the turn's limit"),
        pytest.param(("abc", "abc"), {"episode": 6}, None, True, id="cut by the episode's limit"),
        pytest.param(("abc", "abc", "abc"), {"episode": 8}, None, True, id="no room for a further turn"),
        pytest.param(("abcdefgh",), {}, 2, False, id="cut by what the environment asked for"),
        pytest.param(("abcdefgh",), {}, 50, True, id="the environment asked for more than the limit"),
        pytest.param(("abcdefgh", "abc"), {}, None, False, id="an earlier turn was cut, the last was not"),
    ],
)
async def test_an_episode_is_cut_where_the_limit_ended_it(
    families: dict[str, Renderer], replies: Sequence[str], limits: dict[str, int], asked: int | None, cut: bool
) -> None:
    """By the task's limits, not by the environment's own limit of a turn."""
    talk = Talk(families["qwen2.5"], None, 6, **{"episode": 100} | limits)
    for text in replies:
        talk.sampler.saying = letters(talk.renderer, text)
        ask = Ask("agent", (Message("user", "?"),), max_tokens=asked)
        await talk.conversation.answer(ask, talk.sampler, talk.rendering)
    assert [trajectory.cut for trajectory in talk.conversation.trajectories(1.0)] == [cut]


WARM = Manner(temperature=1.0, max_tokens=25)


@pytest.fixture
def sampler() -> FakeSampler:
    """Two versions have the same bytes: under the second name nothing disturbs the same noise."""
    return FakeSampler(context=160, versions={name: FakeVersion("sum") for name in ("v1", "twin")})


def talk(sampler: FakeSampler, place: str = "a", version: str = "v1") -> PersonsTalk:
    return PersonsTalk(sampler, cast(Renderer, FakeRenderer()), sampler.context, version, 1, place)


async def test_a_person_hears_a_reply_while_it_is_sampled(sampler: FakeSampler) -> None:
    heard: list[Speech] = []
    reply = await talk(sampler).say("hello", WARM, heard.append)
    assert len(heard) > 1 and all(after.text.startswith(before.text) for before, after in pairwise(heard))
    assert reply.text.startswith(heard[-1].text) and heard[-1].tokens == reply.tokens and reply.ended


async def test_a_cancelled_turn_was_never_said(sampler: FakeSampler) -> None:
    conversation, other = talk(sampler), talk(sampler, "b")
    first = await conversation.say("hello", WARM, lambda speech: None)
    assert (await other.say("hello", WARM, lambda speech: None)).text != first.text, "other noise"
    begun = asyncio.Event()
    turn = asyncio.ensure_future(conversation.say("wrong", WARM, lambda speech: begun.set()))
    await begun.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    again = await conversation.say("right", WARM, lambda speech: None)
    twin = talk(sampler, version="twin")
    await twin.say("hello", WARM, lambda speech: None)
    assert await twin.say("right", WARM, lambda speech: None) == again


async def test_a_talk_without_room_says_so_and_keeps_what_it_was(sampler: FakeSampler) -> None:
    conversation = talk(sampler)
    with pytest.raises(Unplayable, match="first prompt has at least 200 tokens; the context is 160"):
        await conversation.say("x" * 200, WARM, lambda speech: None)
    assert (await conversation.say("x" * 100, WARM, lambda speech: None)).tokens
    assert await conversation.say("y" * 100, WARM, lambda speech: None) == Speech(ended="full")


async def test_a_talk_goes_on_at_another_sampler(sampler: FakeSampler) -> None:
    conversation, twin = talk(sampler), talk(sampler, version="twin")
    for each in (conversation, twin):
        await each.say("hello", WARM, lambda speech: None, system="Be brief.")
    other = FakeSampler(context=160, versions=sampler.versions)
    conversation.move(other)
    heard = await conversation.say("more", WARM, lambda speech: None)
    assert heard == await twin.say("more", WARM, lambda speech: None)
    await conversation.leave()
    assert not other.conversations
