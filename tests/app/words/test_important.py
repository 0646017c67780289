"""Which metrics come first, and in which order."""

from __future__ import annotations

from marlaas.app.words.important import IMPORTANT, important
from marlaas.app.words.terms import TERMS

NAMES = ["tokens", "loss", "errors", "cut", "kl", "entropy", "held-out b", "held-out", "reward", "clipped", "mine"]


def test_what_says_whether_a_task_learns_comes_first() -> None:
    newest = dict.fromkeys(NAMES, 0.5)
    shown = important(NAMES, newest)
    assert shown == ["reward", "held-out", "held-out b", "entropy", "kl", "cut", "errors"]


def test_what_is_zero_and_should_be_is_no_news() -> None:
    newest = dict.fromkeys(NAMES, 0.0)
    assert important(NAMES, newest) == ["reward", "held-out", "held-out b", "entropy"]


def test_the_catalogue_says_what_is_important() -> None:
    assert set(IMPORTANT) == {
        t.recorded or t.name for t in TERMS if t.important and (t.kind == "metric" or t.name == "held-out")
    }
    assert {"errors", "cut"} <= set(IMPORTANT)


def test_nothing_is_named_twice() -> None:
    assert len(set(IMPORTANT)) == len(IMPORTANT) and important([], {}) == []
