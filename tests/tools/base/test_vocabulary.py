"""The tokenizer takes any text and gives it back; rendering more turns never changes earlier tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jinja2 import Environment
from tokenizers import Tokenizer

from tools.base.make import CONTROL, SIZE, TAGS, TEMPLATE, build_tokenizer, render, save_tokenizer
from tools.base.skills import CALC

from ...examples import examples

TOKENIZER = build_tokenizer()
text = st.text(st.characters(codec="utf-8"), max_size=30)
call = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    st.sampled_from(["calc", "look_up"]),
    st.dictionaries(st.sampled_from(["expression", "é"]), text | st.integers(), max_size=2),
)
plain = st.builds(
    lambda role, said: {"role": role, "content": said}, st.sampled_from(["user", "tool", "assistant"]), text
)
calling = st.builds(
    lambda said, calls: {"role": "assistant", "content": said, "tool_calls": calls},
    st.none() | text,
    st.lists(call, min_size=1, max_size=2),
)
system = st.builds(lambda said: {"role": "system", "content": said}, text)
dialogues = st.lists(system, max_size=1).flatmap(
    lambda head: st.lists(plain | calling, min_size=1, max_size=5).map(lambda rest: [*head, *rest])
)


def ids(words: str) -> list[int]:
    return list(TOKENIZER.encode(words, add_special_tokens=False))


@given(text)
def test_any_text_survives(words: str) -> None:
    assert TOKENIZER.decode(ids(words)) == words


def test_control_tokens_have_fixed_ids() -> None:
    assert TOKENIZER.convert_tokens_to_ids([*CONTROL, *TAGS]) == list(range(8))
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id) == (0, 1, None)
    assert len(TOKENIZER) <= SIZE and SIZE % 32 == 0


@given(dialogues, st.booleans(), st.data())
def test_more_turns_extend_the_tokens(dialogue: list[dict[str, Any]], tooled: bool, data: st.DataObject) -> None:
    tools: list[dict[Any, Any]] = [CALC] if tooled else []
    shorter = data.draw(st.integers(1, len(dialogue)))
    whole, part = (ids(render(TOKENIZER, d, tools)) for d in (dialogue, dialogue[:shorter]))
    assert whole[: len(part)] == part


@given(dialogues, text)
def test_a_reply_continues_its_prompt(dialogue: list[dict[str, Any]], reply: str) -> None:
    prompt = render(TOKENIZER, dialogue, [CALC], prompting=True)
    whole = render(
        TOKENIZER, [*dialogue, {"role": "assistant", "content": reply}, {"role": "user", "content": "x"}], [CALC]
    )
    assert whole.startswith(f"{prompt}{reply}<|end|>")


@given(dialogues, st.booleans(), st.booleans())
def test_plain_jinja_renders_the_same(dialogue: list[dict[str, Any]], trimmed: bool, prompting: bool) -> None:
    """A renderer without transformers, whatever its block settings, needs only the tojson filter that models expect."""
    light = Environment(trim_blocks=trimmed, lstrip_blocks=trimmed)
    light.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = light.from_string(TEMPLATE.read_text())
    said = template.render(messages=dialogue, tools=[CALC], add_generation_prompt=prompting)
    assert said == render(TOKENIZER, dialogue, [CALC], prompting=prompting)


@settings(max_examples=examples(8))
@given(text)
def test_the_light_tokenizer_agrees(tmp_path_factory: pytest.TempPathFactory, words: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "tokenizer"
    if not folder.exists():
        folder.mkdir()
        save_tokenizer(TOKENIZER, folder)
    light = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert light.encode(words).ids == ids(words)
    assert light.decode(ids(words)) == words


def test_the_shipped_files_are_these(tmp_path: Path) -> None:
    save_tokenizer(TOKENIZER, tmp_path)
    shipped = Path("engine/models/tiny")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((shipped / name).read_text())
    assert (tmp_path / "chat_template.jinja").read_text() == (shipped / "chat_template.jinja").read_text()
