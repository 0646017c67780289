"""Each template renders a conversation as the published model's does, in form if not in words."""

from typing import Any

import pytest

from marlaas.engine.models.templates import ChatTemplate
from tools.random_base.families import FAMILIES, TEMPLATES

Messages = list[dict[str, Any]]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
TOOL_LINE = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}'
USER: Messages = [{"role": "user", "content": "hi"}]
HEADED: Messages = [{"role": "system", "content": "Be brief."}, *USER]


def calling(count: int, content: str = "") -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"x": n}}} for n in range(count)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def render(family: str, messages: Messages, tools: Messages | None = None) -> str:
    template = FAMILIES[family].template
    source = (TEMPLATES / f"{template}.jinja").read_text()
    return ChatTemplate(source, {"bos_token": "<|begin_of_text|>"}).render(messages, tools)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
def test_qwen_has_tools_in_system_and_answers_in_user_turns(family: str) -> None:
    talk = [*HEADED, calling(2, "Let me see."), *({"role": "tool", "content": str(n)} for n in range(2))]
    text = render(family, talk, [TOOL, TOOL])
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert f"\n<tools>\n{TOOL_LINE}\n{TOOL_LINE}\n</tools>\n" in head
    assert rest.startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert rest.endswith(
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"x": 0}}\n</tool_call>'
        '\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n0\n</tool_response>\n<tool_response>\n1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_qwen3_forgets_thoughts_before_the_last_question() -> None:
    thought: Messages = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"}]
    apart: Messages = [{"role": "assistant", "content": "hello", "reasoning_content": "hm"}]
    shown = "<|im_start|>assistant\n<think>\nhm\n</think>\n\nhello<|im_end|>\n"
    for reply in (thought, apart):
        assert shown in render("qwen3", [*USER, *reply])
        later = render("qwen3", [*USER, *reply, *USER])
        assert "<|im_start|>assistant\nhello<|im_end|>\n" in later
        assert "hm" not in later


def test_llama_has_tools_in_questions_and_answers_as_ipython() -> None:
    text = render("llama3", [*USER, calling(1), {"role": "tool", "content": "3"}, *USER], [TOOL])
    system, user, call, answer, again, prompt = text.split("<|eot_id|>")
    assert "\n\nEnvironment: ipython\nCutting Knowledge" in system
    assert '{\n    "type": "function",\n    "function": {\n' in user
    assert user.endswith("}\n\nhi")
    assert call == '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "add", "parameters": {"x": 0}}'
    assert answer == '<|start_header_id|>ipython<|end_header_id|>\n\n"3"'
    assert again == "<|start_header_id|>user<|end_header_id|>\n\nhi"
    assert prompt == "<|start_header_id|>assistant<|end_header_id|>\n\n"
