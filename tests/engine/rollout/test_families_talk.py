"""Conversations as Qwen's and Llama's templates have them: prompts, calls, thoughts, and turns that are rewritten."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marlaas.engine.environments.protocol import Message, ToolCall
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.rollout.conversation import Unplayable
from marlaas.engine.rollout.renderer import Renderer
from tools.random_base.make import make_base

from .talking import Talk, letters

FAMILIES = ("qwen2", "qwen2.5", "qwen3", "llama3")
TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {}}}},)
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "add", "parameters": {"a": 1}}'
RESULT = (Message("tool", "4", name="add"),)
DEEP = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<|im_start|>' + content + '<|im_end|>' }}
    {%- else %}
        {{- '[' + message.role + ']' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|><think>\\n' }}{% endif %}
"""
"""A template that begins every thought itself, keeps no thought, and keeps the space behind it."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_base(tmp_path_factory.mktemp(name), name, rows=1500).path for name in FAMILIES}


@pytest.fixture(scope="module")
def renderers(folders: dict[str, Path]) -> dict[str, Renderer]:
    return {name: Renderer(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = make_base(tmp_path_factory.mktemp("deep"), "qwen3", rows=1500).path
    write_template(folder, DEEP, bos_token={"content": "<|endoftext|>"})
    return Renderer(folder)


def write_template(folder: Path, template: str, **changes: Any) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template, **changes}))


def template_text(talk: Talk, messages: list[dict[str, Any]], tools: Any = None) -> str:
    """What the template makes of a conversation in which all replies are plain text."""
    thinking = talk.conversation.voice.thinking
    return talk.renderer._template.render(messages, tools, thinking)


# first prompts


def test_the_system_prompt_is_the_templates_own(renderers: dict[str, Renderer]) -> None:
    for family, own in (("qwen2.5", "You answer questions"), ("llama3", "Cutting Knowledge Date")):
        renderer = renderers[family]
        bare = renderer._vocabulary.decode(renderer.open([Message("user", "Hi")]))
        told = renderer._vocabulary.decode(renderer.open([Message("system", "Be brief."), Message("user", "Hi")]))
        assert own in bare and "Be brief." in told
    assert "You answer questions" not in renderers["qwen2.5"]._vocabulary.decode(
        renderers["qwen2.5"].open([Message("system", "Be brief."), Message("user", "Hi")])
    )


def test_the_first_token_is_written_once(renderers: dict[str, Renderer]) -> None:
    """Llama's template writes it, and its tokenizer would add another."""
    renderer = renderers["llama3"]
    bos = renderer._vocabulary.control["<|begin_of_text|>"]
    assert renderer._vocabulary._whole.encode("Hi").ids[0] == bos
    prompt = renderer.open([Message("user", "Hi")])
    assert prompt[0] == bos and prompt.count(bos) == 1


def test_whatever_ends_a_turn_is_known(renderers: dict[str, Renderer], folders: dict[str, Path]) -> None:
    ends = {
        "qwen2.5": {"<|im_end|>", "<|endoftext|>"},
        "qwen3": {"<|im_end|>", "<|endoftext|>"},
        "llama3": {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"},
    }
    for family, names in ends.items():
        control = renderers[family]._vocabulary.control
        assert set(renderers[family].stop_ids) == {control[name] for name in names}


def test_a_call_that_waits_ends_a_turn_even_if_no_file_says_so(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base", "llama3", rows=1500).path
    (folder / "generation_config.json").unlink()
    renderer = Renderer(folder)
    control = renderer._vocabulary.control
    assert set(renderer.stop_ids) == {control["<|eot_id|>"], control["<|eom_id|>"]}


def test_rows_of_the_embedding_without_a_token_say_nothing(tmp_path: Path) -> None:
    """At its real size: 151,936 rows, the last 267 of them empty."""
    renderer = Renderer(make_base(tmp_path / "base", "qwen3").path)
    assert renderer.stop_ids == (151643, 151645)
    four = renderer._vocabulary.encode("four")
    assert renderer.parse([151_700, *four, 151_935, 151_645]).text == "four"
    assert renderer.parse([151_700, 151_935]).text == ""


# calls


async def test_a_call_and_its_result(renderers: dict[str, Renderer]) -> None:
    for family, call in (("qwen2.5", HERMES), ("qwen3", HERMES), ("llama3", LLAMA)):
        talk = Talk(renderers[family])
        reply = await talk.say("1+3?", letters(talk.renderer, call), TOOLS)
        assert (reply.text, reply.finish, reply.tool_calls) == ("", "tool", (ToolCall("add", {"a": 1}),)), family
        answer = await talk.say(RESULT, letters(talk.renderer, "It is 4."))
        assert (answer.text, answer.finish) == ("It is 4.", "stop")
        assert len(talk.conversation.trajectories(1.0)) == 1
        first, second = talk.prompts
        said = letters(talk.renderer, call)
        assert second[: len(first) + len(said)] == [*first, *said]
        assert "add" in talk.seen[0] and "4" in talk.seen[1].removeprefix(talk.seen[0])


async def test_llamas_result_has_the_role_of_its_template(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["llama3"])
    await talk.say("1+3?", letters(talk.renderer, LLAMA), TOOLS)
    await talk.say(RESULT, letters(talk.renderer, "4"))
    assert talk.seen[1].endswith(
        f'{LLAMA}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


async def test_a_turn_keeps_the_end_that_the_model_gave_it(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["llama3"])
    control = talk.renderer._vocabulary.control
    said = [control["<|python_tag|>"], *letters(talk.renderer, LLAMA, end=False), control["<|eom_id|>"]]
    reply = await talk.say("1+3?", said)
    assert reply.tool_calls == (ToolCall("add", {"a": 1}),)
    await talk.say(RESULT, letters(talk.renderer, "4"))
    first, second = talk.prompts
    assert second[len(first) : len(first) + len(said)] == said
    assert second[len(first) + len(said)] == control["<|start_header_id|>"]


async def test_several_calls_in_a_template_that_takes_one_are_a_sentence(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["llama3"])
    two = (ToolCall("add", {}), ToolCall("add", {}))
    with pytest.raises(Unplayable, match="makes one call") as raised:
        await talk.say([Message("user", "1?"), Message("assistant", "", tool_calls=two)], [1])
    assert "\n" not in raised.value.message


# thoughts


async def test_a_thought_is_not_part_of_the_text(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"])
    reply = await talk.say("2+2?", letters(talk.renderer, "<think>\nTwo and two.\n</think>\n\nfour"))
    assert (reply.text, reply.thinking, reply.finish) == ("four", "Two and two.", "stop")
    (transcript,) = talk.conversation.transcripts()
    assert transcript.turns == (("user", "2+2?"), ("thinking", "Two and two."), ("assistant", "four"))
    call = await talk.say("Add.", letters(talk.renderer, f"<think>{HERMES}</think>\n{HERMES}"), TOOLS)
    assert (call.text, call.tool_calls, call.thinking) == ("", (ToolCall("add", {"a": 1}),), HERMES)


async def test_without_a_thought_there_is_none(renderers: dict[str, Renderer]) -> None:
    for family, text in (("qwen3", "four"), ("qwen3", "a</think>b"), ("qwen2.5", "<think>a</think>four")):
        talk = Talk(renderers[family])
        reply = await talk.say("2+2?", letters(talk.renderer, text))
        assert (reply.text, reply.thinking) == (text, "")


async def test_a_thought_that_was_cut_has_no_answer(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"], tokens=9)
    said = letters(talk.renderer, "<think>\nTwo and two.\n</think>\n\nfour")
    reply = await talk.say("2+2?", said)
    assert (reply.text, reply.thinking, reply.finish) == ("", "Two and", "length")
    await talk.say(RESULT, letters(talk.renderer, "4"))  # the template closes what the model could not
    assert talk.prompts[1][: len(talk.prompts[0]) + 9] == [*talk.prompts[0], *said[:9]]
    assert talk.seen[1].startswith(talk.seen[0] + "<think>\nTwo and\n</think>\n\n<|im_end|>\n<|im_start|>user")
    await talk.say("And 3+3?", letters(talk.renderer, "6"))
    assert "Two and" not in talk.seen[2] and "assistant\n<|im_end|>" in talk.seen[2]


async def test_a_thought_that_ends_with_the_turn(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"])
    said = letters(talk.renderer, "<think>\nHm")
    assert (await talk.say("2+2?", said)).thinking == "Hm"
    await talk.say(RESULT, letters(talk.renderer, "4"))
    assert talk.seen[1].startswith(talk.seen[0] + "<think>\nHm<|im_end|>\n<|im_start|>user\n<tool_response>")


async def test_thinking_can_be_switched_off(renderers: dict[str, Renderer]) -> None:
    on, off = Talk(renderers["qwen3"], thinking=True), Talk(renderers["qwen3"], thinking=False)
    for talk in (on, off):
        reply = await talk.say("2+2?", letters(talk.renderer, "four"))
        assert (reply.text, reply.thinking) == ("four", "")
    assert on.seen[0].endswith("assistant\n") and off.seen[0] == on.seen[0] + "<think>\n\n</think>\n\n"


def test_a_switch_that_the_template_lacks(renderers: dict[str, Renderer], deep: Renderer) -> None:
    for wanted in (None, True, False):
        renderers["qwen3"].check_thinking(wanted)
    renderers["qwen2.5"].check_thinking(False)
    deep.check_thinking(True)
    with pytest.raises(ConfigError, match="knows no thinking"):
        renderers["qwen2.5"].check_thinking(True)
    with pytest.raises(ConfigError, match="cannot switch it off"):
        deep.check_thinking(False)


async def test_a_prompt_may_begin_the_thought(deep: Renderer) -> None:
    talk = Talk(deep)
    said = letters(deep, "Two.\n</think>\n\nfour")
    reply = await talk.say("2+2?", said)
    assert (reply.text, reply.thinking) == ("four", "Two.")
    await talk.say("And 3+3?", letters(deep, "Three.</think>6"))
    assert talk.seen[1] == ("<|endoftext|>[user]2+2?<|im_start|>\n\nfour<|im_end|>[user]And 3+3?<|im_start|><think>\n")
    answer = said[said.index(deep._vocabulary.control["</think>"]) + 1 :]
    assert contains(talk.prompts[1], answer)


async def test_a_text_that_stops_a_reply(renderers: dict[str, Renderer]) -> None:
    """The reply's ids end where the text is complete; what the model wrote behind it was never said."""
    for family in ("qwen2.5", "qwen3", "llama3"):
        talk = Talk(renderers[family])
        reply = await talk.say("2+2?", letters(talk.renderer, "four. Next: 3+3"), stop=("Next:", "xy"))
        assert (reply.text, reply.finish) == ("four. ", "stop")
        assert talk.sampler.released == ["e/0"], "its memory holds more than was said"
        await talk.say("And?", letters(talk.renderer, "six"), stop=("xy",))
        assert talk.prompts[1][len(talk.prompts[0]) :][:11] == letters(talk.renderer, "four. Next:", end=False)
        assert " 3+3" not in talk.seen[1] and talk.sampler.released == ["e/0"]
        (trajectory,) = talk.conversation.trajectories(1.0)
        assert [span.stop - span.start for span in trajectory.spans] == [11, 4]
        assert int(trajectory.mask.sum()) == 15 and len(trajectory.logprobs) == len(trajectory.tokens)


# turns that are rewritten


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[place : place + len(part)] == part for place in range(len(ids)))


def test_rewriting_is_known_and_said(renderers: dict[str, Renderer], deep: Renderer) -> None:
    rewriting = {name: renderer.rewrites for name, renderer in renderers.items()} | {"deep": deep.rewrites}
    assert rewriting == {"qwen2": False, "qwen2.5": False, "qwen3": True, "llama3": False, "deep": True}
    assert "rewrites earlier turns" in renderers["qwen3"].warning and not renderers["qwen2.5"].warning


async def test_a_rewritten_conversation_goes_on_in_another_trajectory(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"])
    renderer = talk.renderer
    close = renderer._vocabulary.control["</think>"]
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
    assert renderer._vocabulary.encode(texts[0]) != answers[0][:-1]  # tokenising again would be noticed
    for number, part in enumerate(parts):
        given = part.tokens[part.mask == 0].tolist()
        assert [contains(given, answer) for answer in answers] == [True] * number + [False] * (3 - number)
        assert close not in given
    assert [[role for role, _ in t.turns] for t in talk.conversation.transcripts()] == [
        ["user", "thinking", "assistant"]
    ] * 3


async def test_results_within_one_question_are_appended(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"])
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


async def test_each_trajectory_has_noise_and_memory_of_its_own(renderers: dict[str, Renderer]) -> None:
    asked = []
    for _ in range(2):
        talk = Talk(renderers["qwen3"])
        for number in range(3):
            await talk.say(f"{number}?", letters(talk.renderer, "<think>\nb\n</think>\n\nc"))
        asked.append([(request.conversation, request.seed) for request in talk.sampler.requests])
        assert talk.sampler.released == ["e/0", "e/0.1"] and talk.conversation.name == "e/0.2"
    assert asked[0] == asked[1] and [name for name, _ in asked[0]] == ["e/0", "e/0.1", "e/0.2"]
    assert len({seed for _, seed in asked[0]}) == 3


async def test_the_tokens_of_an_episode_are_counted_over_all_trajectories(renderers: dict[str, Renderer]) -> None:
    said = letters(renderers["qwen3"], "<think>\nb\n</think>\n\nc")
    talk = Talk(renderers["qwen3"], episode=2 * len(said) + 3)
    replies = [await talk.say(f"{number}?", said) for number in range(4)]
    assert [reply.finish for reply in replies] == ["stop", "stop", "length", "length"]
    parts = talk.conversation.trajectories(1.0)
    assert [int(part.mask.sum()) for part in parts] == [len(said), len(said), 3]
    asked = [text for t in talk.conversation.transcripts() for role, text in t.turns if role == "user"]
    assert asked == ["0?", "1?", "2?", "3?"]


async def test_a_history_that_no_longer_fits_ends_the_conversation(renderers: dict[str, Renderer]) -> None:
    talk = Talk(renderers["qwen3"], context=80)
    said = letters(talk.renderer, "<think>\nb\n</think>\n\nc")
    await talk.say("0?", said)
    reply = await talk.say("x" * 200, said)
    assert (reply.text, reply.finish, reply.turn) == ("", "length", 1)
    assert len(talk.conversation.trajectories(1.0)) == len(talk.conversation.transcripts()) == 1
    assert talk.conversation.transcripts()[0].turns[-1] == ("user", "x" * 200)


words = st.text("the answer is four\u00e9\U0001f600", min_size=1, max_size=12).map(str.strip).filter(bool)
turns = st.lists(st.tuples(st.booleans(), st.one_of(st.none(), words), words), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FAMILIES[1:]), st.sampled_from((None, False)), turns)
def test_prompts_are_the_templates_and_replies_are_the_models(
    renderers: dict[str, Renderer], family: str, thinking: bool | None, turns: list[tuple[bool, str | None, str]]
) -> None:
    """Whatever is said: every prompt reads as the template writes the conversation, and every sampled id is trained on
    once, in the trajectory that holds its context."""
    talk = Talk(renderers[family], thinking=thinking)
    messages: list[dict[str, Any]] = []
    said = []
    for number, (result, thought, answer) in enumerate(turns):
        news = Message("tool" if result and number else "user", f"{number}?")
        reply = answer if thought is None or family != "qwen3" else f"<think>\n{thought}\n</think>\n\n{answer}"
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
    assert family == "qwen3" or len(parts) == 1
    for prompt, (before, after) in zip(talk.prompts[1:], pairwise(talk.sampler.requests), strict=True):
        if before.conversation == after.conversation:  # its memory may only grow
            assert prompt[: len(before.tokens)] == before.tokens.tolist()


def test_a_base_whose_template_hides_replies_is_refused(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base", "qwen2", rows=1000).path
    write_template(folder, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(BaseModelError, match="does not show"):
        Renderer(folder)
