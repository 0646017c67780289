"""Procedural datasets of reasoning-gym.

Item i comes from ``Random(seed + i)``: two seeds give the same items, shifted. So one huge virtual dataset is divided:
first three quarters to train, last eighth to evaluate, test between, with gaps for datasets that add small numbers to
the seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ..environment import Environment
from ..episode import Episode
from ..rewards import Score, Skip, Transcript
from .declaring import Extract, OwnRandom, declared, extract_of, library, simple

ITEMS = 1 << 31
"""The last item's seed still fits into numpy's 32 bits."""
MADE_AT_ONCE = {"acre": 2_000, "gsm_symbolic": 20_000, "list_functions": 20_000, "word_ladder": 20_000}
"""These prepare all items before the first, or allow no more."""
_PARTS = {"train": (0.0, 0.75), "test": (0.78125, 0.84375), "eval": (0.875, 1.0)}
_ENTRIES_KEPT = 256


def reasoning_gym(
    dataset: str,
    *,
    name: str | None = None,
    prompt: str | Callable[[str], str] = "{question}",
    system: str | None = None,
    extract: str | Extract = "whole",
    items: int | None = None,
    timeout: float = 20.0,
    score_timeout: float = 20.0,
    **options: Any,
) -> Environment:
    """A dataset of reasoning-gym as an environment.

    ``prompt``: what the model is asked, a text with ``{question}`` in it or a function of the question. ``extract``:
    which part of the reply is scored, ``"whole"``, ``"last_line"`` or a function of the text. ``items``: how many items
    the dataset has, training and evaluation together. ``options``: the dataset's own, such as ``min_terms``; those that
    are single values are also parameters of the environment. The reward is what the dataset's scorer says, 0 to 1.

    A scorer that raises on a reply is wrong about it rather than the reply about the question: such a reply is worth 0,
    with the part ``scorer_raised``, as long as the scorer accepts the dataset's own answer, or, if an item has none
    because it has several solutions, can judge an empty one. If it does not, the episode is an error. An item that
    the dataset fails to make is skipped.

    Raises ``ValueError`` for a dataset or options that the library does not know.
    """
    if isinstance(prompt, str) and "{question}" not in prompt:
        raise ValueError(f"the prompt of {dataset} must hold {{question}}, not {prompt!r}")
    asked = prompt if callable(prompt) else lambda question: prompt.replace("{question}", question)
    made = _Datasets(dataset, options, items or MADE_AT_ONCE.get(dataset, ITEMS))
    answer_in = extract_of(extract)

    async def play(ep: Episode, **changed: Any) -> None:
        item = made.item(ep)
        _, entry = made.entry(changed, item)
        ep.task = {"item": item, "options": changed, "answer": entry["answer"]}
        await ep.agent(system=system).ask(asked(entry["question"]))

    about = f"The dataset {dataset} of reasoning-gym."
    environment = declared(
        play, name or dataset, about, timeout=timeout, score_timeout=score_timeout, options=made.defaults
    )

    @environment.score
    def judged(task: Mapping[str, Any], transcript: Transcript) -> Score:
        source, entry = made.entry(task["options"], task["item"])
        reward, raised = score(source, entry, answer_in(transcript.text))
        if not raised:
            return Score(reward)
        print(f"the scorer of {dataset} raised {raised}; its reply is worth 0")
        return Score(reward, scorer_raised=1.0)

    return environment


def score(dataset: Any, entry: Mapping[str, Any], answer: str) -> tuple[float, str]:
    """The reward, and the scorer's error; see ``reasoning_gym``."""
    try:
        return float(dataset.score_answer(answer, entry)), ""
    except Exception as error:
        if not _works(dataset, entry):
            raise
        return 0.0, f"{type(error).__name__}: {error}"


def _works(dataset: Any, entry: Mapping[str, Any]) -> bool:
    own = entry["answer"]
    try:
        paid = dataset.score_answer("" if own is None else own, entry)
    except Exception:
        return False
    return own is None or bool(paid > 0)


class _Datasets:
    """A group's samples share items."""

    def __init__(self, name: str, options: Mapping[str, Any], items: int) -> None:
        registered: Mapping[str, Any] = library("reasoning_gym.factory").DATASETS
        if name not in registered:
            raise ValueError(f"reasoning-gym has no dataset {name!r}")
        config = registered[name][1]
        known = {field.name: field for field in dataclasses.fields(config) if field.name not in ("seed", "size")}
        for option in options:
            if option not in known:
                raise ValueError(f"{name} has no option {option!r}; it has {', '.join(known)}")
        self.defaults = simple({field.name: field.default for field in known.values()} | dict(options))
        self._create: Callable[..., Any] = library("reasoning_gym").create_dataset
        self._name = name
        self._options = dict(options)
        self._items = items
        self._made = lru_cache(8)(self._make)
        self._entries = lru_cache(_ENTRIES_KEPT)(self._entry)
        self._made(_key(self.defaults))  # a mistake in the options is reported during the import of the plugin

    def item(self, ep: Episode) -> int:
        first, end = _PARTS[ep.split]
        return ep.rng.randrange(int(self._items * first), int(self._items * end))

    def entry(self, changed: Mapping[str, Any], item: int) -> tuple[Any, Mapping[str, Any]]:
        key = _key(changed)
        return self._made(key), self._entries(key, item)

    def _make(self, changed: tuple[tuple[str, Any], ...]) -> Any:
        options = self._options | dict(changed)
        try:
            return self._create(self._name, seed=0, size=self._items, **options)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"{self._name} does not take these options: {error}") from error

    def _entry(self, changed: tuple[tuple[str, Any], ...], item: int) -> Mapping[str, Any]:
        dataset = self._made(changed)
        try:
            with OwnRandom(item):  # a generator that draws from the global one makes the same item in every process
                entry: Mapping[str, Any] = dataset[item]
        except IndexError as error:
            dataset.size = self._items  # word_ladder sets its size to the first item that it fails to make
            raise Skip(f"{self._name} has no item {item}: {error}") from error
        return entry


def _key(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(options.items()))
