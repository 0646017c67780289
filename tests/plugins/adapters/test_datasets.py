"""Datasets and environments of reasoning-gym and verifiers, and classes with tools."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import random
import sys
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from marlaas.plugins import Environment, Message, Score, Skip, ToolCall
from marlaas.plugins.adapters import reasoning_gym, tool_class
from marlaas.plugins.adapters.declaring import described_tool
from marlaas.plugins.adapters.verifiers_rollouts import _raised, as_message, rows_of, text_of, watch
from marlaas.plugins.rewards import Transcript
from marlaas.plugins.tools import schema_of

from .playing import calls, played


@dataclasses.dataclass
class SumsConfig:
    """As the library's configurations are."""

    terms: int = 2
    signed: bool = False
    names: tuple[str, ...] = ("a",)
    note: str | None = None
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert self.terms > 0, "terms must be positive"


class Sums:
    """Item i is ``Random(seed + i)``, as in the library; its scorer has the weakness that ``flaw`` names."""

    flaw = ""
    built = 0

    def __init__(self, config: SumsConfig) -> None:
        self.config = config
        self.size = config.size
        Sums.built += 1

    def __getitem__(self, item: int) -> dict[str, Any]:
        if not 0 <= item < self.size:
            raise IndexError(item)
        if self.flaw == "ends":
            self.size = item
            raise IndexError("exhausted")
        rng = Random((self.config.seed or 0) + item)
        terms = [rng.randrange(10**6) for _ in range(self.config.terms)]
        answer = None if self.flaw.startswith("no answer") else str(sum(terms))
        return {"question": "+".join(map(str, terms)), "answer": answer, "metadata": {"item": item}}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        if self.flaw == "raises on all":
            raise RuntimeError("never works")
        if self.flaw == "no answer" and not answer:
            return 0.0
        return float(int(answer) == sum(map(int, entry["question"].split("+"))))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")

    def create_dataset(name: str, **options: Any) -> Sums:
        config = SumsConfig(**options)
        config.validate()
        return Sums(config)

    library.create_dataset = create_dataset  # type: ignore[attr-defined]
    factory.DATASETS = {"sums": (Sums, SumsConfig), "acre": (Sums, SumsConfig)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", library)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)


async def judged(environment: Environment, reply: str, **about: Any) -> Score:
    """Play one episode with a reply, and score it as the scoring process would."""
    _, ep, model = await played(environment, [reply], **about)
    assert environment.scorer is not None
    said = (*model.asks[0].messages, Message("assistant", reply))
    score = environment.scorer(ep.task, Transcript({"agent": said}))
    assert isinstance(score, Score)
    return score


@pytest.mark.usefixtures("installed")
async def test_question_answer_reward() -> None:
    sums = reasoning_gym("sums")
    _, ep, model = await played(sums, [""])
    right = ep.task["answer"]
    assert right == str(sum(map(int, model.heard[0].split("+"))))
    assert (await judged(sums, right)).value == 1.0
    assert (await judged(sums, f"so:\n<answer> {right} </answer>")).value == 1.0
    assert (await judged(sums, "0")).value == 0.0


@pytest.mark.usefixtures("installed")
async def test_options_are_parameters() -> None:
    sums = reasoning_gym("sums", terms=3, names=("b",))
    assert [(p.name, p.type, p.default) for p in sums.parameters] == [("terms", "int", 3), ("signed", "bool", False)]
    _, _, model = await played(sums, [""], config={"terms": 4, "signed": False})
    assert model.heard[0].count("+") == 3


@pytest.mark.usefixtures("installed")
async def test_no_item_is_in_both_splits() -> None:
    sums = reasoning_gym("sums", items=80)
    drawn: dict[str, set[int]] = {"train": set(), "eval": set()}
    for split, items in drawn.items():
        for index in range(300):
            _, ep, _ = await played(sums, [""], split=split, index=index)
            items.add(ep.task["item"])
    assert drawn == {"train": set(range(60)), "eval": set(range(70, 80))}


@pytest.mark.usefixtures("installed")
async def test_a_scorer_that_raises_on_a_reply_pays_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    score = await judged(reasoning_gym("sums"), "what?")
    assert (score.value, score.parts) == (0.0, {"scorer_raised": 1.0})
    assert "the scorer of sums raised ValueError" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("flaw", "raised"), [("raises on all", RuntimeError), ("no answer, none works", ValueError)])
async def test_a_scorer_that_cannot_be_trusted_is_an_error(
    monkeypatch: pytest.MonkeyPatch, flaw: str, raised: type[Exception]
) -> None:
    monkeypatch.setattr(Sums, "flaw", flaw)
    with pytest.raises(raised):
        await judged(reasoning_gym("sums"), "what?")


@pytest.mark.usefixtures("installed")
async def test_an_item_that_cannot_be_made_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = reasoning_gym("sums", items=100)
    monkeypatch.setattr(Sums, "flaw", "ends")
    with pytest.raises(Skip, match=r"sums has no item \d+: exhausted"):
        await played(sums, [""])
    monkeypatch.setattr(Sums, "flaw", "")
    for index in range(30):
        await played(sums, [""], index=index)


@pytest.mark.usefixtures("installed")
async def test_prompts_and_names() -> None:
    sums = reasoning_gym("sums", name="plus", prompt="Add: {question}=", system="Be brief.")
    _, _, model = await played(sums, [""])
    system, user = model.asks[0].messages
    assert (system.role, system.content) == ("system", "Be brief.")
    assert sums.name == "plus" and user.content.startswith("Add: ") and user.content.endswith("=")
    shouted = reasoning_gym("sums", prompt=lambda question: f"{question}!")
    assert (await played(shouted, [""]))[2].heard[0].endswith("!")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dataset": "sums", "size": 5}, "sums has no option 'size'; it has terms, signed, names, note"),
        ({"dataset": "sums", "terms": 0}, "sums does not take these options: terms must be positive"),
        ({"dataset": "suns"}, "reasoning-gym has no dataset 'suns'"),
        ({"dataset": "sums", "prompt": "Add."}, "must hold {question}"),
        ({"dataset": "sums", "extract": "first"}, "extract must be one of"),
    ],
)
def test_what_is_wrong_is_said_at_once(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        reasoning_gym(**given)


def test_messages_of_either_form() -> None:
    call = SimpleNamespace(id="c1", name="add", arguments='{"a": 1}')
    said = SimpleNamespace(role="assistant", content=None, tool_calls=[call])
    assert as_message(said, {}) == Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),))
    answered = {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c1"}
    assert as_message(answered, {"c1": "add"}) == Message("tool", "1", name="add")
    with pytest.raises(ValueError, match="more than text"):
        text_of([{"type": "image_url", "image_url": {"url": "x"}}])


def environment(train: list[dict[str, Any]], held: list[dict[str, Any]] | None) -> Any:
    """As the library's: it evaluates on the training rows where there are no others."""
    return SimpleNamespace(
        eval_dataset=held, get_dataset=lambda: train, get_eval_dataset=lambda: train if held is None else held
    )


def test_no_row_is_in_both_splits() -> None:
    rows = [{"prompt": str(number % 30), "example_id": number} for number in range(60)]
    parts = {split: rows_of(environment(rows, None), split, "sums") for split in ("train", "eval")}
    prompts = {split: {row["prompt"] for row in part} for split, part in parts.items()}
    assert not prompts["train"] & prompts["eval"] and len(prompts["eval"]) == 3
    assert len(parts["train"]) + len(parts["eval"]) == 60

    held = [{"prompt": "7", "example_id": 0}]
    assert rows_of(environment(rows, held), "eval", "sums") == held
    assert all(row["prompt"] != "7" for row in rows_of(environment(rows, held), "train", "sums"))


async def test_functions_that_raise_are_seen_episode_by_episode() -> None:
    def exact(completion: str, answer: str) -> float:
        return float(int(completion) == int(answer))

    async def half(completion: str) -> float:
        return 0.5

    inner = SimpleNamespace(funcs=[half])
    rubric = SimpleNamespace(funcs=[exact, exact], weights=[0.5, 0.0], rubrics=[inner])
    watch(rubric)
    assert list(inspect.signature(rubric.funcs[0]).parameters) == ["completion", "answer"]
    assert await inner.funcs[0]("x") == 0.5

    async def episode(completion: str) -> list[tuple[str, bool]]:
        raised: list[tuple[str, bool]] = []
        _raised.set(raised)
        with contextlib.suppress(ValueError):
            await rubric.funcs[0](completion, "4")
        with contextlib.suppress(ValueError):
            await rubric.funcs[1](completion, "4")
        return raised

    found = await asyncio.gather(asyncio.create_task(episode("4")), asyncio.create_task(episode("four")))
    assert found[0] == [] and [pays for _, pays in found[1]] == [True, False], "a metric is no part of the reward"
    assert found[1][0][0].startswith("exact raised ValueError: invalid literal")


class Safe:
    """Open the safe."""

    def reset(self, digits: int = 2) -> str:
        self.code = str(random.randrange(10**digits)).zfill(digits)
        self.opened = False
        return f"The code has {digits} digits and ends in {self.code[-1]}."

    def turn(self, code: str) -> str:
        """Try a code."""
        self.opened = code == self.code
        return "open" if self.opened else "shut"

    def undocumented(self) -> None: ...

    def _hidden(self) -> None:
        """No tool."""

    def get_reward(self) -> float:
        """No tool either."""
        return float(self.opened)


async def test_tools_are_called_until_the_model_says_something_else() -> None:
    replies = [calls("turn", code="no"), "I give up"]
    result, _, model = await played(tool_class(Safe), replies)
    assert result == 0.0
    assert model.heard[0].startswith("The code has 2 digits") and model.heard[1] == "shut"
    (tool,) = model.asks[0].tools
    assert tool["function"]["name"] == "turn" and tool["function"]["description"] == "Try a code."
    assert (await played(tool_class(Safe), ["no"], member=5))[2].heard[0] == model.heard[0]


async def test_rows_reach_reset() -> None:
    class Asked(Safe):
        async def reset(self, prompt: str, digits: int) -> None:  # type: ignore[override]
            super().reset(digits)

    safe = tool_class(Asked, data=lambda split: [{"prompt": "Open it.", "digits": 3}], name="safe")
    _, _, model = await played(safe, ["no"], task={"prompt": "Open it.", "digits": 3})
    assert model.heard == ["Open it."] and safe.takes_task and safe.name == "safe"


SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "what to look for"},
        "limit": {"type": "integer", "default": 3},
        "order": {"type": "string", "enum": ["up", "down"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "extra": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "not a name": {"type": "string"},
    },
    "required": ["query"],
}


async def test_the_schema_comes_through() -> None:
    async def call(arguments: dict[str, Any]) -> Any:
        return arguments

    tool = described_tool("search", "Look it up.", SCHEMA, call)
    function = schema_of(tool)["function"]
    assert function["name"] == "search"
    assert function["description"] == "Look it up.\nquery: what to look for"
    assert function["parameters"]["required"] == ["query"]
    properties = function["parameters"]["properties"]
    assert {name: facts.get("type") for name, facts in properties.items()} == {
        "query": "string",
        "limit": "integer",
        "order": None,
        "tags": "array",
        "extra": None,
    }
    assert properties["order"]["enum"] == ["up", "down"] and properties["tags"]["items"] == {"type": "string"}
    assert await tool(query="x") == {"query": "x"}
