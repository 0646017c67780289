"""Terms in paragraphs."""

from __future__ import annotations

import json

from marlaas.app.text.terms import TERMS, find_term, heading, paragraphs, search, term_json


def test_a_metric_says_all_that_there_is() -> None:
    said = dict(paragraphs(find_term("drift")))
    assert said[""].startswith("Mean difference of log-probabilities between the policy that sampled")
    assert said["in JSON"] == "drift; drift_mean is an older name, deprecated"
    assert "`max_staleness`" in said["otherwise"] and said["formula"].startswith("mean of |log π_now")
    assert heading(find_term("drift")) == "drift (metric of a step)"
    assert heading(find_term("reward")) == "reward (important metric of a step)"


def test_json_is_whole() -> None:
    table = term_json(find_term("gap"))
    assert json.loads(json.dumps(table))["deprecated"] == ["gap_mean"] and "old" not in table
    assert (table["key"], table["important"], table["kind"]) == ("gap", True, "metric")


def test_a_search_looks_at_names_and_lines() -> None:
    assert search("") == TERMS
    assert search("gap")[0].name == "gap" and {"largest gap", "drift"} <= {
        term.name for term in (*search("gap"), *search("sampled"))
    }
    assert search("optimizer step")[0].name == "step"
    assert search("no such thing at all") == ()
