"""What goes wrong in learning, in words."""

from __future__ import annotations

import pytest

from marlaas.app.words.format import plain
from marlaas.app.words.learning import fields, findings, findings_json, gone_wrong, newest, state_text, told
from marlaas.engine.spec.watching import FINDINGS
from marlaas.engine.store.rows import FindingRow
from marlaas.engine.train.watch import found

from ..filling import HOSTILE
from ..rows import task as row_of

EVIDENCE = {
    "reward_hacking": [
        {"best": 0.8, "best_step": 10.0, "best_error": 0.05, "score": 0.1, "score_step": 30.0, "error": 0.03}
        | {"reward_then": 0.5, "reward": 0.97}
    ],
    "falling_reward": [{"best": 0.8, "now": 0.1, "steps": 15.0}],
    "entropy_collapse": [{"start": 0.31, "now": 0.01, "best": 0.4, "reached": 0.9}],
    "one_reply": [{"share": 0.98, "prompts": 40.0, "reward": 0.5}],
    "exploding_length": [
        {"start": 4.0, "now": 31.0, "cut": 0.9, "cut_start": 0.0},
        {"start": 40.0, "now": 200.0, "reward": 0.4, "reward_start": 0.41},
    ],
    "large_steps": [{"moved": 1.25}],
    "kl_runaway": [{"now": 9.0, "before": 2.0}, {"now": 0.9, "limit": 0.5}, {"now": 99.0, "far": 10.0}],
    "gap_runaway": [{"gap": 0.4, "gap_start": 0.01}, {"drift": 1.2, "ess": 0.2}, {"drift": 1.2}],
    "cut_replies": [
        {"cut": 0.4, "max_tokens": 32.0, "max_episode_tokens": 256.0, "thinks": thinks} for thinks in (0.0, 1.0)
    ],
}


def row(code: str = "large_steps", **values: object) -> FindingRow:
    given = {"policy": "policy", "step": 40, "evidence": EVIDENCE.get(code, [{}])[0], "rollouts": (1, 2, 3)} | values
    return FindingRow(code=code, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", FINDINGS)
def test_each_finding_has_evidence_and_advice(code: str) -> None:
    for evidence in EVIDENCE[code]:
        words = told(row(code, evidence=evidence))
        assert words.headline.endswith(" at step 40") and words.evidence.endswith(".") and words.advice.endswith(".")
        assert words.evidence == plain(words.evidence) and "nan" not in words.evidence


def test_all_that_detectors_give_is_known_here() -> None:
    """Each set of figures above is one that a detector gives; that they give no others, its own tests say."""
    assert set(EVIDENCE) == set(FINDINGS) and callable(found)


def test_a_finding_of_another_version_is_shown_with_its_figures() -> None:
    words = told(row("a_new_one", evidence={"so_much": 0.25}))
    assert (words.title, words.evidence, words.advice) == ("A new one", "so much 0.25", "")
    assert told(row(evidence={"other": 1.0})).evidence == "other 1"
    safe = told(row(HOSTILE, policy=HOSTILE, evidence={HOSTILE: 1.0}), several=True)
    assert all(letter.isprintable() for text in (safe.headline, safe.evidence) for letter in text)


def test_the_newest_that_holds_is_the_one_to_show() -> None:
    rows = (row("one_reply", step=50, holds=False), row("large_steps", step=40), row("kl_runaway", step=9))
    task = row_of(1, state="running", findings=rows, warning="An older warning.")
    assert [one.code for one in findings(task)] == ["large_steps", "kl_runaway", "one_reply"]
    shown = newest(task)
    assert shown is not None and shown.code == "large_steps"
    said = gone_wrong(task)
    assert said.startswith("Steps too large at step 40: a step changes") and ".." not in said
    assert said.endswith(findings(task)[0].advice)
    assert state_text(task) == "● running !" and len(state_text(task)) <= 11, "the column of states has 11 cells"
    over = row_of(1, state="running", findings=rows[:1], warning="An older warning.")
    assert (gone_wrong(over), state_text(over)) == ("", "● running")
    assert findings(over)[0].headline == "One reply for every prompt at step 50, over by now"
    assert state_text(row_of(1, state="done", findings=rows)) == "✓ done !"
    assert state_text(row_of(1, state="queued", findings=rows)) == "○ queued", "it waits, and learns nothing now"


def test_show_has_the_figures_the_advice_and_the_rollouts() -> None:
    task = row_of(17, findings=(row(),))
    names = [name for name, _ in fields(task)]
    assert names == ["finding", "evidence", "what to do", "rollouts"]
    assert fields(task)[-1][1] == "1, 2, 3: `marlaas rollouts 17 --finding large_steps`"
    (one,) = findings_json(task)
    assert one["code"] == "large_steps" and one["evidence"] == {"moved": 1.25} and one["words"] and one["advice"]
