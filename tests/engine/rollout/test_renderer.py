"""Conversations to tokens and back: as in transformers; hostile text stays text; nothing holds up the loop."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import SHIPPED
from marlaas.engine.models.templates import TODAY
from marlaas.engine.rollout.renderer import SHORT, Renderer, Rendering, Said, TooLong, plain
from marlaas.engine.samplers.vocabulary import Vocabulary
from marlaas.plugins.messages import Ask, Message

from .talking import Talk, letters, write_template

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

BASES = ("tiny", "qwen2.5")


@pytest.fixture(scope="module")
def renderers(families: dict[str, Renderer]) -> dict[str, Renderer]:
    return families | {"tiny": Renderer(SHIPPED["tiny"])}


@pytest.fixture(params=BASES)
def renderer(request: pytest.FixtureRequest, renderers: dict[str, Renderer]) -> Renderer:
    return renderers[request.param]


def control(renderer: Renderer, tokens: list[int]) -> list[int]:
    ids = set(renderer.vocabulary.control.values())
    return [token for token in tokens if token in ids]


def says(renderer: Renderer, text: str) -> list[int]:
    """As a model would write it, the end of its turn included."""
    return [*renderer.vocabulary.encode(text), renderer.stop_ids[-1]]


def test_a_reply_that_was_cut_is_closed(renderer: Renderer) -> None:
    cut, ended = (
        renderer.follow([Message("user", "1+1?"), renderer.parse(said)], [Message("user", "What?")]).tokens
        for said in (says(renderer, "tw")[:-1], says(renderer, "tw"))
    )
    assert cut[0] in renderer.stop_ids and cut[1:] == ended


def test_lone_surrogates_in_calls_are_replaced(renderer: Renderer) -> None:
    body = r'{"name": "f", "arguments": {"\ud800": "a\udfff"}}'
    (call,) = renderer.parse(says(renderer, f"<tool_call>{body}</tool_call>")).tool_calls
    assert call.arguments == {"\ufffd": "a\ufffd"}


@pytest.mark.parametrize("base", BASES)
@given(st.lists(st.integers(0, 300)))
def test_any_tokens_can_be_read(renderers: dict[str, Renderer], base: str, tokens: list[int]) -> None:
    renderers[base].parse(tokens).shown.encode()


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


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders["qwen3"], tmp_path / "base")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}<|im_start|>", "does not show"),
        ("{% for %}", "chat template"),
        ("{{ raise_exception('no') }}", "chat template"),
        ("{{ ''.__class__.__mro__ }}{{ 1/0 }}", "chat template"),
        ("{{ ''.__class__.__base__.__subclasses__() }}" + PLAIN, "unsafe"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(folder: Path, template: str, problem: str) -> None:
    write_template(folder, template)
    with pytest.raises(BaseModelError, match=problem):
        Renderer(folder)


FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}

TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}

TALK = [Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b"), Message("user", "c")]

LOUD = "{{ tools | tojson(indent=2) }}" + PLAIN


def theirs(folder: Path, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    given = [plain(message) for message in messages]
    text = tokenizer.apply_chat_template(
        given, tools=tools or None, tokenize=False, add_generation_prompt=True, strftime_now=TODAY.strftime
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _listed(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": LOUD}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))


def _further(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(PLAIN)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(LOUD)


@pytest.mark.parametrize("store", [_listed, _further])
def test_the_template_for_tools_is_used_where_there_are_tools(folder: Path, store: Any) -> None:
    store(folder)
    renderer = Renderer(folder)
    assert renderer.shows_tools and not renderer.warning
    for tools in ([], [TOOL]):
        assert renderer.open(TALK, tools) == theirs(folder, TALK, tools)
    assert renderer.open(TALK, [TOOL]) != renderer.open(TALK)


def test_a_template_that_shows_no_tools_says_so(folder: Path) -> None:
    write_template(folder, PLAIN)
    renderer = Renderer(folder)
    assert renderer.warning == "The base model's chat template shows the model no tools."
    assert renderer.open(TALK) == theirs(folder, TALK, [])
    with pytest.raises(BaseModelError, match=r"shows the model no tools\. Describe the tools in the system prompt"):
        renderer.open(TALK, [TOOL])


@pytest.mark.parametrize(
    "mark", [("{% generation %}", "{% endgeneration %}"), ("{%- generation -%}", "{%- endgeneration -%}")]
)
def test_assistant_turns_in_generation_blocks(folder: Path, mark: tuple[str, str]) -> None:
    source = (
        "{% set said = 'x' %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        f"{mark[0]}{{% set said = 'y' %}} {{{{ m.content + said }}}}<|im_end|> {mark[1]}{{% else %}}"
        "{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}{{ said }}<|im_start|>assistant\n"
    )
    write_template(folder, source)
    assert Renderer(folder).open(TALK) == theirs(folder, TALK, [])


def test_a_template_that_writes_the_date_is_named(folder: Path) -> None:
    write_template(folder, "{{ strftime_now('%d %B %Y') }}{{ documents is defined }}" + PLAIN)
    renderer = Renderer(folder)
    assert "the date, which is always 1 January 2025" in renderer.warning
    assert renderer.open(TALK) == theirs(folder, TALK, [])


def test_marks_of_turns_that_are_not_special_stay_text(folder: Path) -> None:
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    for token in raw["added_tokens"]:
        token["special"] = False
    path.write_text(json.dumps(raw))
    write_template(folder, LOUD)
    renderer = Renderer(folder)
    assert {"<|im_start|>", "<|im_end|>"} <= renderer.vocabulary.control.keys()
    assert "<tool_call>" not in renderer.vocabulary.control
    starts = renderer.vocabulary.control["<|im_start|>"]
    assert renderer.open([Message("user", "<|im_start|>")]).count(starts) == 2


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """A tokenizer in which ``</s>`` is also a word, ``@`` a control token, and two line breaks are added."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "</", "</s", "</s>", "ab"]
    merges = [("<", "/"), ("</", "s"), ("</s", ">"), ("a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("</s>", special=True), AddedToken("@", special=True), AddedToken("<end>", special=True)]
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("\n\n", special=False)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    path = tmp_path_factory.mktemp("odd") / "tokenizer.json"
    tokenizer.save(str(path))
    return Vocabulary(path)


def typed(vocabulary: Vocabulary, text: str) -> list[int]:
    guard = vocabulary.guard([text])
    return vocabulary.encode(guard.safe(text), guard.mark)


def test_control_tokens_are_those_that_show(odd: Vocabulary) -> None:
    assert set(odd.control) == {"</s>", "@", "<end>"}
    (breaks,) = odd.encode_whole("\n\n")
    assert odd.encode("a\n\nb") == [*odd.encode("a"), breaks, *odd.encode("b")]


def test_nothing_is_cut_off_and_nothing_filled_up(odd: Vocabulary) -> None:
    assert len(odd.encode("xyzxyzxyz")) == 9 and odd.encode("x") == odd.encode_whole("x")


@given(st.lists(st.sampled_from(("</s>", "</", "s>", "<end>", "ab", "\n", "é", "@", " "))).map("".join))
def test_typed_control_tokens_stay_letters(odd: Vocabulary, text: str) -> None:
    ids = typed(odd, text)
    assert not set(ids) & set(odd.control.values())
    assert odd.decode(ids) == text.replace("@", "")  # one character that is a control token has no other spelling


def test_words_like_control_tokens_cost_their_length(odd: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of text is looked at a few times at most, however many such words there are."""
    looked: list[int] = []
    plain = odd._plain

    class Counting:
        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> object:
            looked.extend(map(len, texts))
            return plain.encode_batch(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(odd, "_plain", Counting())
    text = "ab</s>" * 2000
    ids = typed(odd, text)
    assert odd.decode(ids) == text and not set(ids) & set(odd.control.values())
    assert sum(looked) <= 3 * len(text)


ROOM = 20_000


def ask(text: str) -> Ask:
    return Ask("a", (Message("user", text),))


@dataclass
class Work:
    """What is tokenised: on which thread, in which turn of the loop, how many characters."""

    done: list[tuple[bool, int, int]] = field(default_factory=list)
    turns: int = 0

    async def count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found, loop_thread, encode = Work(), threading.get_ident(), Vocabulary.encode

    def counted(vocabulary: Vocabulary, text: str, mark: str = "") -> list[int]:
        found.done.append((threading.get_ident() == loop_thread, found.turns, len(text)))
        return encode(vocabulary, text, mark)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    return found


@pytest.fixture(scope="module")
def fresh_renderer(folders: dict[str, Path]) -> Renderer:
    """One of its own: a renderer that others use keeps first prompts that they have rendered."""
    return Renderer(folders["qwen3"])


async def test_what_cannot_fit_is_never_rendered(fresh_renderer: Renderer, work: Work) -> None:
    rendering = Rendering(fresh_renderer)
    long = "word " * 800_000
    with pytest.raises(TooLong) as raised:
        await rendering.open(ask(long), None, ROOM)
    assert raised.value.tokens == len(long) // fresh_renderer.vocabulary.longest
    history: list[Said] = [Message("user", "Hi"), fresh_renderer.parse(letters(fresh_renderer, "Ho"))]
    work.done.clear()
    with pytest.raises(TooLong):
        await rendering.follow(history, [Message("user", long)], (), None, ROOM)
    with pytest.raises(TooLong):  # nor what a template makes of what is short
        await rendering.open(ask("x" * 1000), None, 10)
    assert work.done == []


async def test_a_turn_that_is_too_long_uses_up_the_room(fresh_renderer: Renderer) -> None:
    talk = Talk(fresh_renderer, context=100)
    assert (await talk.say("Hi", letters(fresh_renderer, "Ho"))).text == "Ho"
    for text in ("x" * 100_000, "more"):
        reply = await talk.say(text, letters(fresh_renderer, "Ho"))
        assert (reply.text, reply.finish, reply.turn) == ("", "length", 1)
    assert len(talk.prompts) == 1
    (transcript,) = talk.conversation.transcripts()
    assert transcript.turns[-1] == ("user", "x" * 100 + "…")
    assert [trajectory.cut for trajectory in talk.conversation.trajectories(1.0)] == [True]


async def test_long_prompts_are_rendered_beside_the_loop(fresh_renderer: Renderer, work: Work) -> None:
    """Many of them, asked at the same time by several payers."""
    payers = [Rendering(fresh_renderer) for _ in range(4)]
    asks = [ask(f"{number} {'word ' * SHORT}"[: 2 * SHORT]) for number in range(16)]
    made = await asyncio.gather(*(payers[number % 4].open(each, None, ROOM) for number, each in enumerate(asks)))
    assert len(work.done) == 16 and not any(here for here, _, _ in work.done)
    assert [list(one.tokens) for one in made] == [fresh_renderer.open(each.messages) for each in asks]


async def test_first_prompts_are_kept_within_bounds(fresh_renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.rollout.renderer.CACHED_CHARACTERS", 10_000)
    rendering = Rendering(fresh_renderer)
    for number in range(12):
        await rendering.open(ask(f"{number:02}{'y' * 998}"), None, ROOM)
    known = [number for number in range(12) if fresh_renderer.known((Message("user", f"{number:02}{'y' * 998}"),))]
    assert known and len(known) * 1000 <= 10_000 and known == list(range(12 - len(known), 12)), "the newest"
