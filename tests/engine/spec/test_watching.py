"""``[watch]`` in a task file."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.task import FINDINGS, WatchSpec, parse

TASK = {"tenant": "lab", "name": "sums", "environment": "arithmetic"}


def test_nothing_pauses_by_default() -> None:
    spec = parse(dict(TASK), "t")
    assert spec.watch == WatchSpec() and spec.watch.pause == ()
    assert parse(spec.to_json(), "t") == spec


def test_findings_are_named() -> None:
    spec = parse({**TASK, "watch": {"pause": list(FINDINGS), "length": 3.0}}, "t")
    assert spec.watch.pause == FINDINGS and spec.watch.length == 3.0


@pytest.mark.parametrize(
    ("watch", "says", "path"),
    [
        ({"pause": ["reward_hack"]}, "Did you mean 'reward_hacking'?", "watch.pause"),
        ({"pause": "one_reply"}, "must be a list", "watch.pause"),
        ({"length": 1.0}, "between 1.1 and 1000", "watch.length"),
        ({"kl": 0.5}, "without 'train.kl' the distance to the base is not measured", "watch.kl"),
        (
            {"pause": ["one_reply"], "ignore": ["one_reply"]},
            "names one_reply, which 'watch.ignore' names",
            "watch.pause",
        ),
    ],
)
def test_mistakes_are_refused(watch: dict[str, Any], says: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({**TASK, "watch": watch}, "t")
    assert says in str(refused.value) and refused.value.path == path


def test_an_evaluation_has_nothing_to_watch() -> None:
    with pytest.raises(ConfigError, match=r"\[watch\] is about training"):
        parse({**TASK, "kind": "eval", "versions": ["base"], "watch": {"pause": ["one_reply"]}}, "t")
