"""explain: one term, the nearest on a typo, all of them."""

from __future__ import annotations

import json

from marlaas.app.text.terms import TERMS

from ..commanding import Commander


def test_a_term_is_explained(marlaas: Commander) -> None:
    said = marlaas("explain", "drift")
    assert said.code == 0
    assert said.out.startswith("drift (metric of a step)\n  Mean difference of log-probabilities")
    assert (
        "\n  healthy     Below 0.1, which is a weight of 0.9 to 1.1" in said.out
        and "\n  in JSON     drift; drift_mean" in said.out
    )
    assert max(map(len, said.out.splitlines())) <= 100


def test_a_typo_gets_the_nearest(marlaas: Commander) -> None:
    said = marlaas("explain", "entrpy")
    assert (said.code, said.out) == (2, "")
    assert "There is no term 'entrpy'." in said.err and "Did you mean `marlaas explain entropy`" in said.err
    assert "`marlaas explain` lists all" in marlaas("explain", "xqzw").err


def test_without_a_term_all_are_listed(marlaas: Commander) -> None:
    said = marlaas("explain")
    assert said.code == 0 and all(f"\n{term.name} " in said.out for term in TERMS)
    assert "METRIC OF A STEP" in said.out and "`marlaas explain TERM` says more" in said.err


def test_json(marlaas: Commander) -> None:
    assert [term["name"] for term in json.loads(marlaas("explain", "--json").out)] == [term.name for term in TERMS]
    one = json.loads(marlaas("explain", "gap", "--json").out)
    assert (one["key"], one["deprecated"], one["important"]) == ("gap", ["gap_mean"], True)
