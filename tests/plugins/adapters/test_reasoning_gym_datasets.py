"""Datasets in reasoning-gym's manner, written by hand: the library is a stand-in of two modules."""

from __future__ import annotations

import dataclasses
import sys
from random import Random
from types import ModuleType
from typing import Any

import pytest

from marlaas.plugins import Environment, Message, Score, Skip
from marlaas.plugins.adapters import reasoning_gym
from marlaas.plugins.rewards import Transcript

from .playing import played


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


@pytest.fixture(autouse=True)
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


async def test_question_answer_reward() -> None:
    sums = reasoning_gym("sums")
    _, ep, model = await played(sums, [""])
    right = ep.task["answer"]
    assert right == str(sum(map(int, model.heard[0].split("+"))))
    assert (await judged(sums, right)).value == 1.0
    assert (await judged(sums, f"so:\n<answer> {right} </answer>")).value == 1.0
    assert (await judged(sums, "0")).value == 0.0


async def test_options_are_parameters() -> None:
    sums = reasoning_gym("sums", terms=3, names=("b",))
    assert [(p.name, p.type, p.default) for p in sums.parameters] == [("terms", "int", 3), ("signed", "bool", False)]
    _, _, model = await played(sums, [""], config={"terms": 4, "signed": False})
    assert model.heard[0].count("+") == 3


async def test_no_item_is_in_both_splits() -> None:
    sums = reasoning_gym("sums", items=80)
    drawn: dict[str, set[int]] = {"train": set(), "eval": set()}
    for split, items in drawn.items():
        for index in range(300):
            _, ep, _ = await played(sums, [""], split=split, index=index)
            items.add(ep.task["item"])
    assert drawn == {"train": set(range(60)), "eval": set(range(70, 80))}


async def test_evaluation_does_not_depend_on_the_run() -> None:
    sums = reasoning_gym("sums")
    heard = [(await played(sums, [""], split="eval", seed=seed))[2].heard for seed in (1, 2)]
    trained = [(await played(sums, [""], seed=seed))[2].heard for seed in (1, 2)]
    assert heard[0] == heard[1] and trained[0] != trained[1]


async def test_a_dataset_is_made_once_for_all_episodes() -> None:
    sums = reasoning_gym("sums")
    built = Sums.built
    for index in range(5):
        await played(sums, [""], index=index, config={p.name: p.default for p in sums.parameters})
    assert Sums.built == built


async def test_a_scorer_that_raises_on_a_reply_pays_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    score = await judged(reasoning_gym("sums"), "what?")
    assert (score.value, score.parts) == (0.0, {"scorer_raised": 1.0})
    assert "the scorer of sums raised ValueError" in capsys.readouterr().out


async def test_a_scorer_of_several_solutions_must_judge_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "flaw", "no answer")
    score = await judged(reasoning_gym("sums"), "what?")
    assert (score.value, score.parts) == (0.0, {"scorer_raised": 1.0})


@pytest.mark.parametrize(("flaw", "raised"), [("raises on all", RuntimeError), ("no answer, none works", ValueError)])
async def test_a_scorer_that_cannot_be_trusted_is_an_error(
    monkeypatch: pytest.MonkeyPatch, flaw: str, raised: type[Exception]
) -> None:
    monkeypatch.setattr(Sums, "flaw", flaw)
    with pytest.raises(raised):
        await judged(reasoning_gym("sums"), "what?")


async def test_an_item_that_cannot_be_made_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = reasoning_gym("sums", items=100)
    monkeypatch.setattr(Sums, "flaw", "ends")
    with pytest.raises(Skip, match=r"sums has no item \d+: exhausted"):
        await played(sums, [""])
    monkeypatch.setattr(Sums, "flaw", "")
    for index in range(30):
        await played(sums, [""], index=index)


async def test_prompts_and_names() -> None:
    sums = reasoning_gym("sums", name="plus", prompt="Add: {question}=", system="Be brief.")
    _, _, model = await played(sums, [""])
    system, user = model.asks[0].messages
    assert (system.role, system.content) == ("system", "Be brief.")
    assert sums.name == "plus" and user.content.startswith("Add: ") and user.content.endswith("=")
    shouted = reasoning_gym("sums", prompt=lambda question: f"{question}!")
    assert (await played(shouted, [""]))[2].heard[0].endswith("!")


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
