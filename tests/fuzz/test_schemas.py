"""Schemas meet the grammars alone, then a real sampler behind the gateway; ``make fuzz`` takes its time for both."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from .gateway import CHAT
from .grammars import SAMPLES, SCHEMAS, answer, door, grammar, meets

pytestmark = pytest.mark.processes
ALONE, ASKED = SCHEMAS


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_schema_is_followed_or_refused(data: st.DataObject) -> None:
    ALONE.meet(data.draw(ALONE.inputs()))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_schema_is_answered_or_refused(data: st.DataObject) -> None:
    ASKED.meet(data.draw(ASKED.inputs()))


@pytest.mark.parametrize("schema", SAMPLES)
def test_what_is_right_is_followed_to_its_end(schema: bytes) -> None:
    held = [grammar(schema.decode()) for _ in range(8)]
    said = [answer(each, seed) for seed, each in enumerate(held) if each is not None]
    assert len(said) == len(held) and any(said)
    for text in said:
        if text is not None:
            meets(text, schema.decode())


@pytest.mark.parametrize("schema", SAMPLES)
def test_what_is_right_is_answered(schema: bytes) -> None:
    ASKED.meet(schema)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": json.loads(schema)}}
    talk = [{"role": "user", "content": "hi"}]
    body = {"model": "1@1", "messages": talk, "max_tokens": 20, "response_format": form}
    assert door().post(CHAT, json.dumps(body).encode()).status == 200


def test_an_answer_that_meets_no_schema_is_found() -> None:
    for said, schema in (("3", {"type": "string"}), ("1.5", {"type": "integer"}), ("0.3", {"multipleOf": 0.25})):
        with pytest.raises(AssertionError, match="does not meet"):
            meets(said, json.dumps(schema))
    meets("1.0", json.dumps({"type": "integer"}))
    meets("0.30000000000000001", json.dumps({"multipleOf": 1e-17}))
