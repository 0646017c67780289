"""How a plugin's failures are said."""

from __future__ import annotations

from marlaas.engine.environments.plugin import said
from marlaas.engine.types import Failure


def test_a_failure_stands_within_sentences() -> None:
    assert said(Failure("it is no number, inf.", "x.py", 3)) == "x.py:3: it is no number, inf"
    assert said(Failure("it is a link", "x.py")) == "x.py: it is a link" and said(Failure("it died")) == "it died"
