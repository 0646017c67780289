"""Whether the keys of a task file that say what is measured fit each other and its ``kind``.

Each value has been checked by itself before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .agent_rules import NAME
from .validation import Fault

if TYPE_CHECKING:
    from .task import TaskSpec

OF_TRAINING = ("policy", "policies", "agents", "train", "keep", "watch")
"""Tables that mean nothing where nothing is trained."""
OF_TRAINING_EVALS = ("every", "target", "patience", "test_prompts", "suite")
"""Keys of [eval] that mean nothing there."""


def measuring_faults(spec: TaskSpec) -> Iterator[Fault]:
    """What is wrong with how a task measures, which depends on its ``kind``."""
    for fault in _of_evaluation(spec) if spec.kind == "eval" else _of_training(spec):
        yield replace(fault, also=(*fault.also, "kind"))


def _of_evaluation(spec: TaskSpec) -> Iterator[Fault]:
    if not spec.versions:
        yield Fault(
            "versions",
            "'versions' is missing: an evaluation needs something to measure.",
            'Write `versions = ["17@best", "base"]`.',
        )
    for words, times in Counter(spec.versions).items():
        if times > 1:
            yield Fault("versions", f"'versions' names {words!r} {times} times.", "Name it once.")
        if not words.strip() or not words.isprintable():
            says = f"'versions' has {words!r}, which means nothing."
            yield Fault("versions", says, "Write a version such as 17@best.")
    if spec.steps != max(1, len(spec.versions)):
        yield Fault("steps", "'steps' is set, but an evaluation makes none.", "Remove it.")
    plain = type(spec)(spec.tenant, spec.name, spec.environment)
    for table in OF_TRAINING:
        if table == "train":  # a deterministic evaluation is one thing that [train] can ask for
            same = _but(spec.train, plain.train, "deterministic", "max_staleness")
        else:
            same = getattr(spec, table) == getattr(plain, table)
        if not same:
            yield Fault(table, f"[{table}] is about training, but 'kind' is \"eval\".", "Remove it.")
    for key in OF_TRAINING_EVALS:
        if getattr(spec.eval, key) != getattr(plain.eval, key):
            yield Fault(f"eval.{key}", f"'eval.{key}' is about training, but 'kind' is \"eval\".", "Remove it.")


def _of_training(spec: TaskSpec) -> Iterator[Fault]:
    if spec.versions:
        yield Fault("versions", "'versions' is set, but 'kind' is \"train\".", 'Write `kind = "eval"`, or remove it.')
    if spec.eval.split != "eval":
        yield Fault(
            "eval.split",
            f"'eval.split' is {spec.eval.split!r}, but a training task chooses its best version on \"eval\".",
            'Write `test_prompts = 64` to measure on "test" at its end.',
        )
    for name, times in Counter(suite.name for suite in spec.eval.suite).items():
        if times > 1:
            yield Fault("eval.suite", f"{times} suites are called {name!r}.", "Give each a name of its own.")
        if not NAME.fullmatch(name) or name == "test":
            yield Fault(
                "eval.suite",
                f"a suite cannot be called {name!r}.",
                "Use 1 to 40 letters, digits, - and _, but not test.",
            )
    deciding = [suite.name for suite in spec.eval.suite if suite.decides]
    if len(deciding) > 1:
        yield Fault(
            "eval.suite",
            f"the suites {' and '.join(deciding)} both decide.",
            "Leave `decides` to one of them: there is one best version.",
        )
    for suite in spec.eval.suite:
        if suite.decides and suite.split == "test":
            yield Fault("eval.suite", f'the suite {suite.name!r} decides on the split "test".', 'Use `split = "eval"`.')
        if suite.samples > 1 and suite.temperature == 0.0:
            yield Fault(
                "eval.suite",
                f"the suite {suite.name!r} has {suite.samples} samples of a prompt, which are all the same with"
                " `temperature = 0`.",
                "Set its temperature, for example to 1.0.",
            )
        if suite.decides and spec.eval.patience and not suite.every:
            yield Fault(
                "eval.patience",
                f"is {spec.eval.patience}, but the suite {suite.name!r}, which decides, is measured before and after"
                " training alone.",
                "Set its `every` to a number of steps.",
            )


def _but(one: Any, other: Any, *keys: str) -> bool:
    """Whether two specifications are the same but for some keys."""
    return all(getattr(one, key) == getattr(other, key) for key in vars(one) if key not in keys)
