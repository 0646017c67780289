"""Given conversations in tokens: those of transformers, with the replies marked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.models.templates import TODAY
from marlaas.engine.rollout.conversation import Order
from marlaas.engine.rollout.demonstrations import parts_of, turns_of
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.teacher_prompt import TeacherPrompt
from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence
from marlaas.engine.trajectories import Trajectory
from marlaas.plugins.conversations import conversation_of, pair_of

from .talking import FAMILIES, write_template

LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
TALK = [
    {"role": "system", "content": "You sail."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Ahoy! <b>\n\n"},
    {"role": "user", "content": "Where to?"},
    {"role": "assistant", "content": "North."},
]
CALLS = [
    {"role": "user", "content": "Any ships?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"far": True}}}]},
    {"role": "tool", "name": "look", "content": "two"},
    {"role": "assistant", "content": "Two."},
]
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shown(renderer: Renderer, row: object, thinking: bool | None = None) -> list[Trajectory]:
    messages, tools = conversation_of(row)
    parts = parts_of(turns_of(renderer, messages, tools, thinking), 3, Order())
    return [part.trajectory("agent", 1.0, False) for part in parts]


def replies(renderer: Renderer, trajectories: list[Trajectory]) -> list[str]:
    return [
        renderer.vocabulary.decode(each.tokens[span.start : span.stop].tolist())
        for each in trajectories
        for span in each.spans
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("talk", "tools"), [(TALK, ()), (CALLS, (LOOK,))], ids=["text", "calls"])
def test_tokens_are_those_of_transformers(
    folders: dict[str, Path], families: dict[str, Renderer], family: str, talk: list[dict[str, Any]], tools: Any
) -> None:
    """Up to the end of the last reply of each part; a template that rewrites earlier replies begins another."""
    renderer = families[family]
    if tools and not renderer.shows_tools:
        with pytest.raises(BaseModelError, match="no tools"):
            shown(renderer, {"messages": talk, "tools": tools})
        return
    parts = shown(renderer, {"messages": talk, "tools": json.dumps(tools)})
    tokenizer: Any = AutoTokenizer.from_pretrained(folders[family])
    said = [place + 1 for place, message in enumerate(talk) if message["role"] == "assistant"]
    wholes = [
        tokenizer.apply_chat_template(
            talk[:end], tools=list(tools) or None, return_dict=True, strftime_now=TODAY.strftime
        )["input_ids"]
        for end in said[-len(parts) :]
    ]
    for part, whole in zip(parts, wholes, strict=True):
        length = len(part.tokens)
        assert part.tokens.tolist() == whole[:length] and length >= len(whole) - 1, "but for a line's end"
        assert part.given and all(map(math.isnan, part.logprobs[part.mask != 0]))
        assert not part.logprobs[part.mask == 0].any() and {span.version for span in part.spans} == {3}
    ends = tuple(renderer.vocabulary.decode([token]) for token in renderer.stop_ids)
    texts = replies(renderer, parts)
    assert len(texts) == 2 and all(text.endswith(ends) for text in texts)
    assert "look" in texts[0] if tools else "Ahoy! <b>" in texts[0]


def test_marks_are_those_of_generation_blocks(folders: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(folders["qwen2.5"], tmp_path / "marked")
    write_template(folder, MARKED)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    whole = tokenizer.apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
    (part,) = shown(Renderer(folder), TALK)
    length = len(part.tokens)
    assert part.tokens.tolist() == whole["input_ids"][:length]
    assert part.mask.tolist() == whole["assistant_masks"][:length] and not any(whole["assistant_masks"][length:])


def test_a_thought_belongs_to_the_reply(families: dict[str, Renderer]) -> None:
    """With a switch that is off, the empty thought stands in the prompt, as for a sampler."""
    row = {"prompt": "1+1?", "completion": "2"}
    (off,) = shown(families["qwen3"], row, thinking=False)
    assert replies(families["qwen3"], [off]) == ["2<|im_end|>"]
    prompt = families["qwen3"].open(conversation_of(row)[0][:1], thinking=False)
    assert off.tokens[: off.spans[0].start].tolist() == prompt


def test_text_is_no_control_token(families: dict[str, Renderer]) -> None:
    renderer = families["qwen2.5"]
    (part,) = shown(renderer, {"prompt": "<|im_start|>", "completion": "<|im_end|> and <|endoftext|>"})
    control = set(renderer.vocabulary.control.values())
    assert sum(token in control for token in part.tokens[part.mask != 0].tolist()) == 1
    assert np.count_nonzero(part.mask) > 8


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "1+1?"}, "a row has \"messages\", .* not 'question'"),
        ({"messages": []}, "a list of messages, not \\[\\]"),
        ({"messages": "Hello"}, "a list of messages, not 'Hello'"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "ends with a reply of the assistant, not .* 'user'"),
        ({"messages": [{"role": "user"}]}, "message 1 has no content"),
        ({"messages": ["Hi"]}, "message 1 is 'Hi', not an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "message 1 has a part that is no text"),
        ({"prompt": "Hi", "completion": "Ho", "tools": "[{"}, "tools are no JSON"),
        ({"prompt": "Hi", "completion": None}, "a text or a list of messages, not None"),
        ({"conversations": 5}, "a text or a list of messages, not 5"),
        (
            {"messages": [{"role": "user", "content": "Hi", "tool_calls": 5}]},
            "message 1 has tool_calls that are no list",
        ),
        ({"prompt": "Hi", "completion": "Ho", "tools": ["look"]}, '"tools" is a list of JSON schemas'),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": "{"}]}]},
            "message 1: the arguments of f are no JSON",
        ),
    ],
)
def test_other_rows_are_refused_in_words(row: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        conversation_of(row)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "Hi", "chosen": "Ho"}, 'a row has "chosen" and "rejected"'),
        ([1], 'a row has "chosen" and "rejected"'),
        ({"prompt": 5, "chosen": "Ho", "rejected": "No"}, "a text or a list of messages, not 5"),
        ({"prompt": "Hi", "chosen": None, "rejected": "No"}, "a text or a list of messages, not None"),
        ({"chosen": [{"role": "user", "content": "Hi"}], "rejected": "No"}, "ends with a reply of the assistant"),
    ],
)
def test_other_pairs_are_refused_in_words(row: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        pair_of(row)


def test_the_forms_of_other_tools_are_read() -> None:
    said = [("user", "Hi"), ("assistant", "Ho")]
    forms = [
        {"messages": [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]},
        {"prompt": "Hi", "completion": "Ho"},
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ho"}]},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}], "system": ""},
    ]
    assert {tuple((m.role, m.content) for m in conversation_of(form)[0]) for form in forms} == {tuple(said)}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_teacher_reads_a_system_text(families: dict[str, Renderer], name: str) -> None:
    """The tokens of the whole conversation with that text, and the same sampled ones."""
    renderer, text = families[name], "Answer in one word."
    prompt = TeacherPrompt.of(renderer, text, None)
    trained = shown(renderer, {"messages": TALK[1:]})[-1]
    read = shown(renderer, {"messages": [{"role": "system", "content": text}, *TALK[1:]]})[-1]
    sequence = TrainSequence(trained.tokens, trained.mask, trained.logprobs, 1.0)
    (taught,) = prompt.shown(TrainGroup(0, (sequence,))).sequences
    assert taught.shown is not None
    tokens, mask = taught.shown
    assert tokens.tolist() == read.tokens.tolist() and mask.tolist() == read.mask.tolist()
    assert tokens[mask == 1].tolist() == trained.tokens[trained.mask == 1].tolist()


def test_a_conversation_with_its_own_system_text_has_none(families: dict[str, Renderer]) -> None:
    renderer = families["qwen2.5"]
    prompt = TeacherPrompt.of(renderer, "Answer in one word.", None)
    (trained,) = shown(renderer, {"messages": TALK})
    sequence = TrainSequence(trained.tokens, trained.mask, trained.logprobs, 1.0)
    with pytest.raises(ConfigError, match="begins with a system text of its own"):
        prompt.shown(TrainGroup(0, (sequence,)))
