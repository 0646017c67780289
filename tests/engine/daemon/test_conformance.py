"""What the log says of an environment with errors."""

from __future__ import annotations

import pytest

from marlaas.engine.daemon.main import sentence
from marlaas.engine.environments.conformance.finding import Finding

NOTE = Finding("latency", "note", "It is quick.")
BASELINE = Finding("baseline", "error", "The answer '0' scores 0.94.")
LEAK = Finding("leaks", "error", "The splits meet.")


@pytest.mark.parametrize(
    ("errors", "more"), [([BASELINE], ""), ([BASELINE, LEAK], " (and 1 more: `marlaas env list`)")]
)
def test_the_first_error_and_how_many_there_are(errors: list[Finding], more: str) -> None:
    said = sentence("rg/coin_flip", "9f2c", [NOTE, *errors])
    assert said == f"The environment rg/coin_flip (9f2c) has an error: The answer '0' scores 0.94.{more}"
