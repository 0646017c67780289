"""The query over logs, at every moment while it is typed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.filters import parse_log_filter, with_field
from marlaas.engine.errors import ConfigError
from marlaas.engine.store.queries.machine import LEVELS, EventFilter


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", EventFilter()),
        ("level:error task:17 tenant:bio", EventFilter(level="error", task=17, tenant="bio")),
        ("LEVEL:warn kind:worker", EventFilter(level="warning", kind="worker")),
        ('died "two words" n_ctx:5', EventFilter(words=("died", "two words", "n_ctx:5"))),
        ('tenant:"the lab" "open', EventFilter(tenant="the lab", words=("open",))),
        ("level: task:", EventFilter()),
        ("leve", EventFilter(words=("leve",))),
    ],
)
def test_words_and_fields(text: str, wanted: EventFilter) -> None:
    assert parse_log_filter(text) == wanted


@pytest.mark.parametrize(("text", "sentence"), [("level:bad", "no level 'bad'"), ("task:x1", "'x1' is no task number")])
def test_what_makes_no_sense_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_log_filter(text)


@given(st.text(max_size=60))
def test_whatever_is_typed_is_a_filter_or_a_sentence(text: str) -> None:
    try:
        parse_log_filter(text)
    except ConfigError as error:
        assert error.message.endswith(".")


def test_a_value_takes_the_place_of_another() -> None:
    assert with_field("task:3 level:info  died", "level", "error") == "level:error task:3 died"
    assert with_field("level:error died", "level", "") == "died" and with_field("", "level", "") == ""
    text = with_field('tenant:"the lab" died', "tenant", "two words")
    assert text == 'tenant:"two words" died' and parse_log_filter(text).tenant == "two words"


def test_a_level_lets_pass_what_is_worse() -> None:
    assert [EventFilter(level=level).levels for level in LEVELS] == [LEVELS, LEVELS[1:], LEVELS[2:]]
    assert EventFilter().levels == LEVELS
