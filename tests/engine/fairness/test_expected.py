"""What things are expected to cost: what they have cost lately, and nothing is remembered for ever."""

from __future__ import annotations

from marlaas.engine.fairness.fair_clock import KNOWN, Expected


def test_a_key_costs_what_it_has_cost_lately() -> None:
    expected: Expected[str] = Expected()
    expected.learn("a", 100)
    assert expected.of("a") == 100
    expected.learn("a", 200)
    assert expected.of("a") == 125


def test_an_unknown_key_costs_what_all_cost() -> None:
    expected: Expected[int] = Expected()
    for key in range(50):
        expected.learn(key, 40)
    assert expected.of(99) == 40


def test_nothing_is_expected_for_free() -> None:
    expected: Expected[str] = Expected()
    expected.learn("a", 0)
    assert expected.of("a") == 1


def test_what_was_learnt_the_longest_ago_is_forgotten() -> None:
    expected: Expected[int] = Expected()
    for key in range(KNOWN):
        expected.learn(key, 7)
    expected.learn(0, 7)
    expected.learn(KNOWN, 1000)
    assert [expected.of(key) for key in (0, *range(2, KNOWN), KNOWN)] == [7] * (KNOWN - 1) + [1000]
    assert expected.of(1) == expected.of(-1) > 7
    expected.learn(KNOWN + 1, 1000)
    assert expected.of(2) == expected.of(-1) and expected.of(0) == expected.of(3) == 7
