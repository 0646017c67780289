"""Terms in paragraphs."""

from __future__ import annotations

import json

from marlaas.app.text.terms import TERMS, Term, by_kind, find_term, heading, paragraphs, search, sentence, term_json


def test_a_metric_says_all_that_there_is() -> None:
    said = dict(paragraphs(find_term("drift")))
    assert said[""].startswith("Mean difference of log-probabilities between the policy that sampled")
    assert said["in JSON"] == "drift; drift_mean is an older name, deprecated"
    assert "`max_staleness`" in said["otherwise"] and said["formula"].startswith("mean of |log π_now")
    assert heading(find_term("drift")) == "drift (metric of a step)"
    assert heading(find_term("reward")) == "reward (important metric of a step)"


def test_what_a_term_lacks_is_left_out() -> None:
    assert paragraphs(Term("home", "a folder")) == [("", "A folder.")]
    assert heading(find_term("home")) == "home"
    assert dict(paragraphs(find_term("failed")))["in JSON"] == "failed; errors, failures are older names, deprecated"


def test_a_sentence_keeps_code_as_it_is() -> None:
    assert (sentence("`a` b"), sentence("a: b"), sentence("what?"), sentence("")) == ("`a` b.", "A: b.", "What?", "")


def test_every_term_is_in_the_list_once() -> None:
    listed = [term.name for terms in by_kind().values() for term in terms]
    assert sorted(listed) == sorted(term.name for term in TERMS)


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
