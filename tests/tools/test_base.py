"""The shipped base: what it is taught, how it is made, and that it does what its scores say."""

import asyncio
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors import safe_open
from transformers import PreTrainedTokenizerBase

from marlaas.plugins.episode import Episode
from marlaas.plugins.messages import Ask, Reply, ToolCall
from tests.seldom import often
from tools.base.make import Packer, build_network, build_tokenizer, render, save_tokenizer, train
from tools.base.skills import (
    CALC,
    NAMES,
    SKILLS,
    TEMPLATES,
    THINGS,
    Game,
    Message,
    Problem,
    Skill,
    Verdict,
    draw,
    script,
    start,
)

BUNDLED = {"arithmetic": "add 2 digits", "guess": "guess among 15", "calculator": "calculator"}
"""The skill behind each bundled environment at its default parameters."""
PLAYED = [pytest.param(skill, id=skill.name) for skill in SKILLS]


def outcome(problem: Problem, right: bool) -> Verdict:
    """The verdict on the scripted player."""
    said = [m["content"] for m in script(problem, right) if m["role"] == "assistant"]
    verdict = problem.judge(said)
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.parametrize("skill", PLAYED)
def test_the_right_player_is_right(skill: Skill) -> None:
    rng = Random(0)
    assert all(outcome(skill.draw(rng), right=True) == Verdict(True, True) for _ in range(200))


@pytest.mark.parametrize("skill", PLAYED)
def test_the_wrong_player_is_mostly_wrong(skill: Skill) -> None:
    if skill.name == "echo":
        pytest.skip("is always right")
    rng = Random(0)
    found = sum(outcome(skill.draw(rng), right=False).strict for _ in range(400))
    # Counting upwards finds some secrets, and some words read the same both ways.
    assert found < 400 * (0.5 if "guess" in skill.name else 0.25)


Player = Callable[[list[str], bool], str]


def loaded(name: str) -> ModuleType:
    """The module of a bundled file, loaded by its path as the engine does."""
    spec = importlib.util.spec_from_file_location(name, Path("plugins/bundled") / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adder(heard: list[str], right: bool) -> str:
    a, b = re.findall(r"\d+", heard[0])
    return str(int(a) + int(b) + (not right))


def guesser(heard: list[str], right: bool) -> str:
    low, high = map(int, re.findall(r"\d+", heard[0]))
    return Game(low, high - low + 1, 4, low).reply(heard, right)


def solver(heard: list[str], right: bool) -> str:
    if len(heard) > 1:
        return heard[-1]
    numbers = re.findall(r"\d+", heard[0])
    first, second = next(t[1:] for t in TEMPLATES if shape(t[0]) == shape(heard[0]))
    return f"{numbers[0]}{first}{numbers[1]}" + f"{second}{numbers[2]}" * right


PLAYERS: dict[str, Player] = {"arithmetic": adder, "guess": guesser, "calculator": solver}


def shape(text: str) -> str:
    """A prompt without what varies in it."""
    text = re.sub(rf"\b({'|'.join(NAMES)}|{{name}})\b|{{name}}", "NAME", text)
    text = re.sub(rf"\b({'|'.join(THINGS)})\b|{{things}}", "THINGS", text)
    return re.sub(r"\d+|{[abc]}", "0", text)


def played(name: str, index: int, say: Callable[[list[str]], str]) -> tuple[Any, Episode, list[Ask]]:
    """What an episode returns, what it logged and asked, when the model says this."""
    asked: list[Ask] = []
    heard: list[str] = []

    async def answer(ask: Ask) -> Reply:
        asked.append(ask)
        heard.extend(m.content for m in ask.messages)
        text = say(heard)
        if name == "calculator" and len(heard) == 1:
            return Reply("", "tool", len(asked), (ToolCall("calc", {"expression": text}),))
        return Reply(text, "stop", len(asked))

    episode = Episode(answer, index=index)
    return asyncio.run(getattr(loaded(name), name)(episode)), episode, asked


@pytest.mark.parametrize("name", PLAYERS)
def test_the_right_player_earns_and_the_wrong_one_less(name: str) -> None:
    player = PLAYERS[name]
    right = [played(name, i, lambda heard: player(heard, True))[0] for i in range(60)]
    wrong = [played(name, i, lambda heard: player(heard, False))[0] for i in range(60)]
    assert all(r is True for r in right)
    assert sum(wrong) < 30


@pytest.mark.parametrize("name", PLAYERS)
def test_prompts_are_the_taught_ones(name: str) -> None:
    skill, rng = next(s for s in SKILLS if s.name == BUNDLED[name]), Random(0)
    taught = {shape(skill.draw(rng).opening) for _ in range(100)}
    player = PLAYERS[name]
    episodes = [played(name, i, lambda heard: player(heard, True)) for i in range(100)]
    met = {shape(asked[0].messages[0].content) for _, _, asked in episodes}
    assert met == taught


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


def test_the_shipped_files_are_these(tmp_path: Path) -> None:
    save_tokenizer(TOKENIZER, tmp_path)
    shipped = Path("engine/models/tiny")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((shipped / name).read_text())
    assert (tmp_path / "chat_template.jinja").read_text() == (shipped / "chat_template.jinja").read_text()


PACKER = Packer(TOKENIZER, rows=8, length=256, seed=3)


def test_no_attention_across_conversations() -> None:
    torch.manual_seed(0)
    network = build_network(TOKENIZER).eval()
    batch = PACKER.batch(0)
    starts = [i for i, p in enumerate(batch.positions[0].tolist()) if p == 0]
    second = slice(starts[1], starts[2])
    with torch.no_grad():
        packed = network(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits[0, second]
        alone = network(input_ids=batch.ids[:1, second]).logits[0]
    assert torch.allclose(packed, alone, atol=1e-5)


def trained() -> torch.Tensor:
    """The embedding after two small steps."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    network = build_network(tokenizer)
    train(network, Packer(tokenizer, rows=1, length=256, seed=0), steps=2)
    weights: torch.Tensor = network.model.embed_tokens.weight.detach()
    return weights


@pytest.mark.slow
def test_two_runs_agree_to_the_bit() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(trained(), trained())
    finally:
        torch.set_num_threads(threads)


SHIPPED = Path("engine/models/tiny")
EVALUATION = json.loads((SHIPPED / "evaluation.json").read_text())


def test_at_most_ten_megabytes_of_bfloat16() -> None:
    weights = SHIPPED / "model.safetensors"
    assert weights.stat().st_size <= 10_000_000
    with safe_open(weights, "pt") as tensors:
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"BF16"}  # noqa: SIM118
    assert json.loads((SHIPPED / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", BUNDLED.values())
def test_bundled_skills_are_partial(name: str) -> None:
    scores = EVALUATION["skills"][name]
    assert 0.1 <= scores["greedy"]["strict"] <= 0.6
    assert 0.25 <= scores["sampled"]["strict"] <= 0.6


def replies(model: Any, tokenizer: PreTrainedTokenizerBase, dialogues: list[list[Message]], tools: Any) -> list[str]:
    """The greedy next turn of each dialogue, without the end token, by transformers."""
    texts = [render(tokenizer, dialogue, tools, prompting=True) for dialogue in dialogues]
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=96, do_sample=False)
    return [
        str(text) for text in tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    ]


def verdicts_of(problems: list[Problem]) -> list[Verdict]:
    """How the shipped model fares on problems of one skill."""
    model, tokenizer = build_network(build_tokenizer()).from_pretrained(SHIPPED, dtype=torch.float32), build_tokenizer()
    dialogues = [start(problem) for problem in problems]
    said: list[list[str]] = [[] for _ in problems]
    verdicts: dict[int, Verdict] = {}
    while live := [place for place in range(len(problems)) if place not in verdicts]:
        texts = replies(model.eval(), tokenizer, [dialogues[place] for place in live], problems[0].tools)
        for place, text in zip(live, texts, strict=True):
            said[place].append(text)
            answer = problems[place].judge(said[place])
            if isinstance(answer, Verdict):
                verdicts[place] = answer
            else:
                dialogues[place] += [{"role": "assistant", "content": text}, answer]
    return list(verdicts.values())


@pytest.mark.parametrize("name", often({"add 2 digits"}, BUNDLED.values()))
def test_the_weights_do_what_the_evaluation_says(name: str) -> None:
    skill = next(s for s in SKILLS if s.name == name)
    rng = Random(7)
    problems = [draw(skill, rng, evaluation=True) for _ in range(64)]
    verdicts = verdicts_of(problems)
    right = sum(v.strict for v in verdicts) / len(verdicts)
    # Four standard deviations of a sample of 64.
    assert right == pytest.approx(EVALUATION["skills"][name]["greedy"]["strict"], abs=0.25)
