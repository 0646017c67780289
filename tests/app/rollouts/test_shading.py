"""What colours a token, and what is said where nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.app.rollouts.reading import (
    ADVANTAGE,
    ADVANTAGES,
    GIVEN,
    LOGPROB,
    PROBABILITIES,
    SHADES,
    UNKNOWN,
    VERSION,
    WEIGHT,
    WEIGHTS,
    shading_of,
    token_styles,
)
from marlaas.engine.store.queries.episodes import StoredTrajectory, Tokens

from .conversing import TOKENS, conversation


@pytest.mark.parametrize("scale", [ADVANTAGES, PROBABILITIES, WEIGHTS])
def test_classes_differ_without_colour(scale: object) -> None:
    assert isinstance(scale, type(WEIGHTS)) and len(scale.styles) == len(scale.labels) == len(scale.bounds) + 1
    attributes = {" ".join(w for w in style.split() if not w.startswith("$")) for style in scale.styles}
    assert len(attributes) == len(scale.styles)


def test_each_token_has_the_style_of_its_class() -> None:
    one = conversation()
    assert token_styles(LOGPROB, one, TOKENS) == [GIVEN, GIVEN, *(PROBABILITIES.styles[c] for c in (4, 2, 0))]
    assert token_styles(WEIGHT, one, TOKENS) == [GIVEN, GIVEN, WEIGHTS.styles[2], WEIGHTS.styles[3], UNKNOWN]
    assert token_styles(ADVANTAGE, one, TOKENS)[2:] == [ADVANTAGES.styles[4]] * 3
    turns = replace(TOKENS, spans=((2, 4, 7), (4, 5, 8)), advantages=(-0.75, None))
    assert token_styles(ADVANTAGE, one, turns)[2:] == [ADVANTAGES.styles[0]] * 2 + [ADVANTAGES.styles[4]]
    versions = token_styles(VERSION, one, TOKENS)
    assert versions[:2] == [GIVEN] * 2 and versions[2] == versions[3] != versions[4]
    assert [label for label, _ in shading_of(VERSION, one).legend] == ["v7", "v8"]


def test_what_is_lacking_is_said() -> None:
    bare = StoredTrajectory(5, 5, (), replace(TOKENS, weights=()))
    cases = {
        "deleted to save disk space": conversation(parts=(StoredTrajectory(5, 5, (), Tokens()),)),
        "has no tokens": conversation(parts=(StoredTrajectory(5, 0, (), Tokens()),)),
        "not trained on": conversation(split="eval", parts=(bare,)),
        "No step has consumed": conversation(step=None, parts=(bare,)),
        "Nothing is known": conversation(parts=(bare,)),
    }
    for words, one in cases.items():
        assert words in shading_of(WEIGHT, one).lacking
    assert not any(shading_of(name, conversation()).lacking for name in SHADES)
