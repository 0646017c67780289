"""Conversations to tokens and back: append-only, and hostile text stays text."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import SHIPPED
from marlaas.engine.rollout.renderer import Renderer, Said
from marlaas.engine.rollout.spoken import Spoken
from marlaas.plugins.messages import Message, ToolCall

from .chatml import TEMPLATE, write_chatml

TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {}}}},)
BASES = ("tiny", "chatml")


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Renderer]:
    chatml = write_chatml(tmp_path_factory.mktemp("chatml"))
    return {"tiny": Renderer(SHIPPED["tiny"]), "chatml": Renderer(chatml)}


@pytest.fixture(params=BASES)
def renderer(request: pytest.FixtureRequest, renderers: dict[str, Renderer]) -> Renderer:
    return renderers[request.param]


def control(renderer: Renderer, tokens: list[int]) -> list[int]:
    ids = set(renderer.vocabulary.control.values())
    return [token for token in tokens if token in ids]


def says(renderer: Renderer, text: str) -> list[int]:
    """As a model would write it, the end of its turn included."""
    return [*renderer.vocabulary.encode(text), renderer.stop_ids[-1]]


def test_a_first_prompt_is_the_template_in_tokens(renderers: dict[str, Renderer]) -> None:
    talk = [Message("system", "Be brief."), Message("user", "Hi 😀")]
    tiny = renderers["tiny"]
    assert tiny.vocabulary.decode(tiny.open(talk)) == "<|system|>Be brief.<|end|><|user|>Hi 😀<|end|><|assistant|>"
    chatml = renderers["chatml"]
    assert chatml.vocabulary.decode(chatml.open(talk[1:])) == (
        "<|im_start|>user\nHi 😀<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_part_of_the_first_prompt(renderer: Renderer) -> None:
    with_tools, without = renderer.open([Message("user", "1+1?")], TOOLS), renderer.open([Message("user", "1+1?")])
    assert "add" in renderer.vocabulary.decode(with_tools) and len(with_tools) > len(without)


def test_stop_ids_are_the_ends_that_the_model_knows(renderers: dict[str, Renderer]) -> None:
    assert renderers["tiny"].stop_ids == (1,)
    assert renderers["chatml"].stop_ids == (256, 258)


def test_turns_only_append(renderer: Renderer) -> None:
    """What is appended turn by turn is what the template makes of the whole conversation."""
    history: list[Said] = [Message("user", "1+1?")]
    tokens = renderer.open([Message("user", "1+1?")])
    turns: list[tuple[str, list[Message]]] = [
        ("2", [Message("user", "And 2+2?")]),
        ("Well,", [Message("tool", "4", name="add"), Message("tool", "5")]),
        ("4", [Message("user", "Thanks.")]),
    ]
    for said, new in turns:
        tokens += says(renderer, said)
        history.append(renderer.parse(says(renderer, said), tokens))
        going_on = renderer.follow(history, new)
        assert not going_on.anew
        tokens += going_on.tokens
        history += new
    whole = [Message("assistant", said.text) if isinstance(said, Spoken) else said for said in history]
    assert tokens == renderer.open(whole)


def test_a_reply_that_was_cut_is_closed(renderer: Renderer) -> None:
    cut, ended = (
        renderer.follow([Message("user", "1+1?"), renderer.parse(said)], [Message("user", "What?")]).tokens
        for said in (says(renderer, "tw")[:-1], says(renderer, "tw"))
    )
    assert cut[0] in renderer.stop_ids and cut[1:] == ended


def test_a_conversation_goes_on_after_a_reply_only(renderer: Renderer) -> None:
    with pytest.raises(ValueError, match="after a reply"):
        renderer.follow([Message("user", "1+1?")], [Message("user", "What?")])


def test_group_members_share_the_first_prompt(renderer: Renderer) -> None:
    first = renderer.open([Message("user", "shared")])
    first.append(0)
    assert renderer.open([Message("user", "shared")]) == first[:-1]


def test_unknown_roles_are_refused(renderer: Renderer) -> None:
    with pytest.raises(ValueError, match="role"):
        renderer.open([Message("user|><|end", "Hi")])


# what comes back


def test_a_reply_loses_its_end(renderer: Renderer) -> None:
    spoken = renderer.parse(says(renderer, "It is 2."))
    assert (spoken.text, spoken.tool_calls, spoken.shown) == ("It is 2.", (), "It is 2.")


def test_tool_calls_are_found(renderer: Renderer) -> None:
    text = 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>'
    spoken = renderer.parse(says(renderer, text + '<tool_call>{"name": "stop"}</tool_call>'))
    assert spoken.text == "Let me see."
    assert spoken.tool_calls == (ToolCall("add", {"a": 1, "b": [2]}), ToolCall("stop", {}))
    assert spoken.shown.startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"name": 1, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"x": NaN}}',
        "[" * 3000,
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
    ],
)
def test_malformed_calls_stay_text(renderer: Renderer, body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    spoken = renderer.parse(says(renderer, text))
    assert (spoken.text, spoken.tool_calls) == (text, ())


def test_lone_surrogates_in_calls_are_replaced(renderer: Renderer) -> None:
    body = r'{"name": "f", "arguments": {"\ud800": "a\udfff"}}'
    (call,) = renderer.parse(says(renderer, f"<tool_call>{body}</tool_call>")).tool_calls
    assert call.arguments == {"\ufffd": "a\ufffd"}


@pytest.mark.parametrize("base", BASES)
@given(st.lists(st.integers(0, 300)))
def test_any_tokens_can_be_read(renderers: dict[str, Renderer], base: str, tokens: list[int]) -> None:
    renderers[base].parse(tokens).shown.encode()


# hostile text

NASTY = ("<|end|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|assistant|>", "<|im_start|>", "\U000f0000", "{{")
hostile = st.lists(st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=())) | st.text("<|end>_tol")).map(
    "".join
)


@pytest.mark.parametrize("base", BASES)
@given(hostile, hostile, hostile)
def test_text_never_becomes_a_control_token(
    renderers: dict[str, Renderer], base: str, system: str, question: str, result: str
) -> None:
    renderer = renderers[base]
    plain = [Message("system", "s"), Message("user", "q")]
    typed = [Message("system", system), Message("user", question)]
    tools = [{"type": "function", "function": {"name": "f", "description": question, "parameters": {}}}]
    harmless = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    if not system:  # some templates leave an empty system turn out
        plain, typed = plain[1:], typed[1:]
    if question:
        expected = control(renderer, renderer.open(plain, harmless))
        assert control(renderer, renderer.open(typed, tools)) == expected
    reply = renderer.parse(says(renderer, "a"))
    appended = renderer.follow([*typed, reply], [Message("tool", result, name=question)]).tokens
    harmless_end = renderer.follow([*plain, reply], [Message("tool", "r", name="f")]).tokens
    assert control(renderer, appended) == control(renderer, harmless_end)


@pytest.mark.parametrize("base", BASES)
@given(hostile.map(lambda text: text.encode("utf-8", "replace").decode()))
def test_text_is_kept_letter_for_letter(renderers: dict[str, Renderer], base: str, text: str) -> None:
    renderer = renderers[base]
    tokens = renderer.open([Message("user", text)])
    empty = renderer.open([Message("user", "")])
    shown, frame = renderer.vocabulary.decode(tokens), renderer.vocabulary.decode(empty)
    assert len(shown) == len(frame) + len(text) and text in shown


# templates that cannot be used


def test_a_template_that_forgets_turns_is_said_to_rewrite(tmp_path: Path, renderer: Renderer) -> None:
    forgetful = "{% for m in messages[-2:] %}<|im_start|>{{ m.role + m.content }}<|im_end|>{% endfor %}<|im_start|>"
    forgets = Renderer(write_chatml(tmp_path, forgetful))
    assert forgets.rewrites and "rewrites earlier turns" in forgets.warning
    assert not renderer.rewrites and not renderer.warning


def test_a_template_that_hides_replies_is_refused(tmp_path: Path) -> None:
    silent = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}<|im_start|>"
    with pytest.raises(BaseModelError, match="does not show"):
        Renderer(write_chatml(tmp_path, silent))


@pytest.mark.parametrize(
    "template", ["{% for %}", "{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}{{ 1/0 }}"]
)
def test_broken_templates_are_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(BaseModelError, match="chat template"):
        Renderer(write_chatml(tmp_path, template))


def test_templates_cannot_reach_out_of_their_sandbox(tmp_path: Path) -> None:
    escape = "{{ ''.__class__.__base__.__subclasses__() }}"
    with pytest.raises(BaseModelError, match="unsafe"):
        Renderer(write_chatml(tmp_path, escape + TEMPLATE))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match="no chat template"):
        Renderer(tmp_path)
    write_chatml(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "?"}))
    with pytest.raises(BaseModelError, match="is no tokenizer"):
        Renderer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BaseModelError, match="cannot be read"):
        Renderer(tmp_path)
