"""When held-out scores end a task, and what is said of them."""

from __future__ import annotations

import pytest

from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.held_out import reached, remark, stalled

TARGET = EvalSpec(target=0.95)
PATIENT = EvalSpec(patience=2)
BOTH = EvalSpec(target=0.95, patience=2)


@pytest.mark.parametrize(
    ("scores", "whether"),
    [({}, False), ({0: 0.99}, False), ({0: 0.1, 10: 0.94}, False), ({10: 0.95}, True), ({10: 0.97, 20: 0.5}, True)],
)
def test_a_trained_version_reaches_the_target(scores: dict[int, float], whether: bool) -> None:
    assert reached(scores, TARGET) is whether
    assert not reached(scores, EvalSpec())


@pytest.mark.parametrize(
    ("scores", "whether"),
    [
        ({}, False),
        ({0: 0.5, 10: 0.4}, False),
        ({0: 0.5, 10: 0.4, 20: 0.5}, True),  # as good is not better
        ({0: 0.1, 10: 0.4, 20: 0.3}, False),
        ({30: 0.2, 10: 0.4, 20: 0.3, 0: 0.1}, True),
        ({0: 0.1, 10: 0.4, 20: 0.3, 30: 0.41}, False),
    ],
)
def test_patience_counts_evaluations_since_the_best(scores: dict[int, float], whether: bool) -> None:
    assert stalled(scores, PATIENT) is whether
    assert not stalled(scores, EvalSpec())


@pytest.mark.parametrize(
    ("scores", "spec", "early", "says"),
    [
        ({}, BOTH, True, ""),
        ({0: 0.1, 40: 0.83}, EvalSpec(), False, ""),
        ({0: 0.1, 40: 0.96}, TARGET, True, ""),
        ({0: 0.1, 40: 0.8333, 60: 0.5}, TARGET, False, "Target 0.95 was not reached; best was 0.833 at step 40."),
        (
            {0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5},
            PATIENT,
            True,
            "The held-out score did not rise in 2 evaluations; best was 0.5 at step 10.",
        ),
        ({0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5}, PATIENT, False, ""),  # it ended with its last step, not for that
        (
            {0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5},
            BOTH,
            True,
            "The held-out score did not rise in 2 evaluations and target 0.95 was not reached; best was 0.5 at step"
            " 10.",
        ),
    ],
)
def test_what_is_said_at_the_end(scores: dict[int, float], spec: EvalSpec, early: bool, says: str) -> None:
    assert remark(scores, spec, early) == says
