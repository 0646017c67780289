"""How metrics are spoken of."""

from __future__ import annotations

import math
from array import array

import pytest

from marlaas.app.text.metrics import (
    exact,
    important,
    in_order,
    newest_text,
    newest_values,
    value_text,
    words,
)
from marlaas.engine.store.queries.learning import Track

NAMES = ["tokens", "loss", "errors", "cut", "kl", "entropy", "held-out b", "held-out", "reward", "clipped", "mine"]


def test_the_important_come_first_and_edges_are_hidden() -> None:
    names = ["zeal", "staleness_2", "loss", "reward_min", "reward", "[/m]\x1b[31m", "held-out"]
    assert in_order(names) == ["reward", "held-out", "loss", "[/m]\x1b[31m", "zeal"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("reward", 0.5, "0.50"),
        ("clipped", 0.031, "3 %"),
        ("seconds", 0.41, "0.4 s"),
        ("tokens", 12_345.0, "12.3k"),
        ("loss", -1e-5, "-1.0e-05"),
        ("tokens", math.nan, "nan"),
        ("clipped", math.inf, "inf"),
        ("loss", None, "-"),
        ("length", 43.2519, "43.3"),
        ("length", 431.7, "432"),
        ("sums: length", 3.0, "3"),
        ("length_max", 64.0, "64"),
        ("reward_spread", 0.31279, "0.31"),
        ("entropy", 0.74153, "0.742"),
        ("entropy", 2.74153, "2.74"),
        ("grad_norm", 53.4321, "53.4"),
        ("grad_norm", 534.321, "534"),
        ("gap_mean", 0.00041, "4.1e-04"),
        ("staleness", 0.8333, "0.8"),
        ("epoch", 1.3751, "1.38"),
        ("epoch", 13.751, "13.8"),
        ("staleness_0", 5.0, "5"),
        ("staleness_2", 1.0, "1"),
    ],
)
def test_values(name: str, value: float | None, text: str) -> None:
    assert value_text(name, value) == text


def test_a_metric_of_strangers() -> None:
    assert words("[/m]\x1b[31m").title == "[/m]" and words("\x1b[2J").title == "?"
    assert (exact(None), exact(0.123456789)) == ("-", "0.123457")


def test_a_wait_is_a_share_of_its_step() -> None:
    values = {"publish_wait_seconds": 0.012, "begin_wait_seconds": 1.5, "seconds": 0.8}
    assert newest_text("publish_wait_seconds", values) == "12 ms, 1.5 %"
    assert newest_text("begin_wait_seconds", values) == "1.5 s, 187.5 %"
    assert newest_text("publish_wait_seconds", {"publish_wait_seconds": 0.5}) == "0.5 s"
    assert in_order(values) == ["seconds", "publish_wait_seconds", "begin_wait_seconds"]


def test_an_epoch_says_of_how_many_rows() -> None:
    values = {"epoch": 1.4, "rows": 2000.0, "loss": 0.5}
    assert newest_text("epoch", values) == "1.4 of 2,000 rows"
    assert (newest_text("loss", values), newest_text("epoch", {"epoch": 2.0})) == ("0.5", "2")
    assert in_order(values) == ["loss", "epoch"]


def test_a_value_of_earlier_steps_is_not_the_newest() -> None:
    def track(*steps: int) -> Track:
        return Track(array("q", steps), array("d", [step / 10 for step in steps]))

    tracks = {
        "reward": track(7, 8, 9),
        "gap_mean": track(7, 8),
        "entropy": track(6, 7),
        "held-out": track(5),
        "kl": track(),
    }
    found = newest_values(tracks)
    assert found == {"reward": 0.9, "gap_mean": 0.8, "held-out": 0.5}
    assert newest_text("entropy", found) == "-", "no group of the last steps had a signal"


def test_what_says_whether_a_task_learns_comes_first() -> None:
    newest = dict.fromkeys(NAMES, 0.5)
    shown = important(NAMES, newest)
    assert shown == ["reward", "held-out", "held-out b", "entropy", "kl", "cut", "errors"]
