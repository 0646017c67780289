"""Conversations as Qwen's and Llama's templates have them: prompts, calls, thoughts, and turns that are rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.rollout.conversation import Unplayable
from marlaas.engine.rollout.renderer import Renderer
from marlaas.plugins.messages import Message, ToolCall
from tools.random_base.make import make_base

from .talking import Talk, contains, letters, write_template

FAMILIES = ("qwen2", "qwen2.5", "qwen3", "llama3")
TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {}}}},)
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "add", "parameters": {"a": 1}}'
RESULT = (Message("tool", "4", name="add"),)
# first prompts


def test_the_system_prompt_is_the_templates_own(families: dict[str, Renderer]) -> None:
    for family, own in (("qwen2.5", "You answer questions"), ("llama3", "Cutting Knowledge Date")):
        renderer = families[family]
        bare = renderer.vocabulary.decode(renderer.open([Message("user", "Hi")]))
        told = renderer.vocabulary.decode(renderer.open([Message("system", "Be brief."), Message("user", "Hi")]))
        assert own in bare and "Be brief." in told
    assert "You answer questions" not in families["qwen2.5"].vocabulary.decode(
        families["qwen2.5"].open([Message("system", "Be brief."), Message("user", "Hi")])
    )


def test_the_first_token_is_written_once(families: dict[str, Renderer], folders: dict[str, Path]) -> None:
    """Llama's template writes it, and its tokenizer would add another."""
    renderer = families["llama3"]
    bos = renderer.vocabulary.control["<|begin_of_text|>"]
    assert Tokenizer.from_file(str(folders["llama3"] / "tokenizer.json")).encode("Hi").ids[0] == bos
    prompt = renderer.open([Message("user", "Hi")])
    assert prompt[0] == bos and prompt.count(bos) == 1


def test_whatever_ends_a_turn_is_known(families: dict[str, Renderer]) -> None:
    ends = {
        "qwen2.5": {"<|im_end|>", "<|endoftext|>"},
        "qwen3": {"<|im_end|>", "<|endoftext|>"},
        "llama3": {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"},
    }
    for family, names in ends.items():
        control = families[family].vocabulary.control
        assert set(families[family].stop_ids) == {control[name] for name in names}


def test_a_call_that_waits_ends_a_turn_even_if_no_file_says_so(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base", "llama3", rows=1500).path
    (folder / "generation_config.json").unlink()
    renderer = Renderer(folder)
    control = renderer.vocabulary.control
    assert set(renderer.stop_ids) == {control["<|eot_id|>"], control["<|eom_id|>"]}


def test_rows_of_the_embedding_without_a_token_say_nothing(tmp_path: Path) -> None:
    """At its real size: 151,936 rows, the last 267 of them empty."""
    renderer = Renderer(make_base(tmp_path / "base", "qwen3").path)
    assert renderer.stop_ids == (151643, 151645)
    four = renderer.vocabulary.encode("four")
    assert renderer.parse([151_700, *four, 151_935, 151_645]).text == "four"
    assert renderer.parse([151_700, 151_935]).text == ""


# calls


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


async def test_llamas_result_has_the_role_of_its_template(families: dict[str, Renderer]) -> None:
    talk = Talk(families["llama3"])
    await talk.say("1+3?", letters(talk.renderer, LLAMA), TOOLS)
    await talk.say(RESULT, letters(talk.renderer, "4"))
    assert talk.seen[1].endswith(
        f'{LLAMA}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


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


# thoughts


async def test_a_thought_is_not_part_of_the_text(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"])
    reply = await talk.say("2+2?", letters(talk.renderer, "<think>\nTwo and two.\n</think>\n\nfour"))
    assert (reply.text, reply.thinking, reply.finish) == ("four", "Two and two.", "stop")
    (transcript,) = talk.conversation.transcripts()
    assert transcript.turns == (("user", "2+2?"), ("thinking", "Two and two."), ("assistant", "four"))
    call = await talk.say("Add.", letters(talk.renderer, f"<think>{HERMES}</think>\n{HERMES}"), TOOLS)
    assert (call.text, call.tool_calls, call.thinking) == ("", (ToolCall("add", {"a": 1}),), HERMES)


async def test_without_a_thought_there_is_none(families: dict[str, Renderer]) -> None:
    for family, text in (("qwen3", "four"), ("qwen3", "a</think>b"), ("qwen2.5", "<think>a</think>four")):
        talk = Talk(families[family])
        reply = await talk.say("2+2?", letters(talk.renderer, text))
        assert (reply.text, reply.thinking) == (text, "")


async def test_a_thought_that_was_cut_has_no_answer(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"], tokens=9)
    said = letters(talk.renderer, "<think>\nTwo and two.\n</think>\n\nfour")
    reply = await talk.say("2+2?", said)
    assert (reply.text, reply.thinking, reply.finish) == ("", "Two and", "length")
    await talk.say(RESULT, letters(talk.renderer, "4"))  # the template closes what the model could not
    assert talk.prompts[1][: len(talk.prompts[0]) + 9] == [*talk.prompts[0], *said[:9]]
    assert talk.seen[1].startswith(talk.seen[0] + "<think>\nTwo and\n</think>\n\n<|im_end|>\n<|im_start|>user")
    await talk.say("And 3+3?", letters(talk.renderer, "6"))
    assert "Two and" not in talk.seen[2] and "assistant\n<|im_end|>" in talk.seen[2]


async def test_a_thought_that_ends_with_the_turn(families: dict[str, Renderer]) -> None:
    talk = Talk(families["qwen3"])
    said = letters(talk.renderer, "<think>\nHm")
    assert (await talk.say("2+2?", said)).thinking == "Hm"
    await talk.say(RESULT, letters(talk.renderer, "4"))
    assert talk.seen[1].startswith(talk.seen[0] + "<think>\nHm<|im_end|>\n<|im_start|>user\n<tool_response>")


async def test_thinking_can_be_switched_off(families: dict[str, Renderer]) -> None:
    on, off = Talk(families["qwen3"], thinking=True), Talk(families["qwen3"], thinking=False)
    for talk in (on, off):
        reply = await talk.say("2+2?", letters(talk.renderer, "four"))
        assert (reply.text, reply.thinking) == ("four", "")
    assert on.seen[0].endswith("assistant\n") and off.seen[0] == on.seen[0] + "<think>\n\n</think>\n\n"


def test_a_switch_that_the_template_lacks(families: dict[str, Renderer], deep: Renderer) -> None:
    for wanted in (None, True, False):
        families["qwen3"].check_thinking(wanted)
    families["qwen2.5"].check_thinking(False)
    deep.check_thinking(True)
    with pytest.raises(ConfigError, match="knows no thinking"):
        families["qwen2.5"].check_thinking(True)
    with pytest.raises(ConfigError, match="cannot switch it off"):
        deep.check_thinking(False)


async def test_a_prompt_may_begin_the_thought(deep: Renderer) -> None:
    talk = Talk(deep)
    said = letters(deep, "Two.\n</think>\n\nfour")
    reply = await talk.say("2+2?", said)
    assert (reply.text, reply.thinking) == ("four", "Two.")
    await talk.say("And 3+3?", letters(deep, "Three.</think>6"))
    assert talk.seen[1] == ("<|endoftext|>[user]2+2?<|im_start|>\n\nfour<|im_end|>[user]And 3+3?<|im_start|><think>\n")
    answer = said[said.index(deep.vocabulary.added["</think>"]) + 1 :]
    assert contains(talk.prompts[1], answer)


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


def test_a_base_whose_template_hides_replies_is_refused(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base", "qwen2", rows=1000).path
    write_template(folder, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(BaseModelError, match="does not show"):
        Renderer(folder)
