"""What may be chosen in a field: environments with their state, versions, bases, losses, and what was typed so far."""

from __future__ import annotations

from marlaas.app.tui.form.form import (
    BAD,
    DOUBTFUL,
    GOOD,
    Choice,
    chosen,
    fitting,
    of_bases,
    of_environments,
    of_field,
    of_versions,
    taken,
    task_fields,
)
from marlaas.engine.spec.losses import PUBLISHED
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.rows import EnvironmentRow, VersionRow

from ...filling import HOSTILE


def environment(name: str, state: str = "ready", message: str = "", line: int = 0) -> EnvironmentRow:
    return EnvironmentRow(name, "v", state, (), f"About {name}.", message, f"{name}.py", line, "", 0.0)


def version(task: int, number: int, label: str = "", score: float | None = 0.5) -> KeptVersion:
    row = VersionRow(1, task, "lab", "sums", "policy", number, "n", "committed", label, score, "0", "x", 9, 1.0)
    return KeptVersion(row, 1, "done", "arithmetic", 20)


def test_environments_say_their_state_working_ones_first() -> None:
    rows = [
        environment("games/broken", "broken", "'(' was never closed", 7),
        environment("games/guess"),
        environment("other/guess", "stale", "older"),
        environment("lost", "hidden"),
        environment("sums"),
    ]
    choices = of_environments(rows, ())
    assert [(choice.value, choice.standing) for choice in choices] == [
        ("games/guess", GOOD), ("sums", GOOD), ("other/guess", DOUBTFUL), ("broken", BAD),
    ]  # fmt: skip
    assert choices[1].note == "ready: About sums."
    assert choices[3].note == "broken: '(' was never closed (games/broken.py:7)"


def test_versions_are_told_by_score_and_task_newest_first() -> None:
    choices = of_versions([version(3, 8, "best"), version(4, 20, "last", None), version(4, 12)])
    assert [choice.value for choice in choices] == ["4@20", "4@12", "3@8"]
    assert choices[0].note.startswith("final, held-out") and choices[2].note.endswith("lab / sums, on arithmetic")
    assert "best, held-out 0.5" in choices[2].note


def test_only_the_home_s_base_is_good() -> None:
    assert [(choice.value, choice.standing) for choice in of_bases("tiny", ("tiny", "big", "big"))] == [
        ("tiny", GOOD), ("big", BAD),
    ]  # fmt: skip


def test_every_loss_is_told_in_a_few_words() -> None:
    (field,) = (field for field in task_fields() if field.key == "train.loss")
    assert {choice.value: choice.note for choice in of_field(field)} == {
        name: loss.words for name, loss in PUBLISHED.items()
    }
    (flag,) = (field for field in task_fields() if field.key == "train.deterministic")
    assert [choice.value for choice in of_field(flag)] == ["true", "false"]


def test_what_fits_has_all_words_and_begins_with_them_first() -> None:
    choices = [Choice("word-sums", "ready"), Choice("sums", "broken: of words"), Choice("guess")]
    assert [choice.value for choice in fitting(choices, "SUMS")] == ["sums", "word-sums"]
    assert [choice.value for choice in fitting(choices, "sums broken")] == ["sums"]
    assert [choice.value for choice in fitting(choices, "grpo, gu")] == ["guess"], "of several values the last"
    assert len(fitting(choices, "")) == 3 and not fitting(choices, "nothing")


def test_a_choice_takes_the_place_of_the_last_value() -> None:
    dapo = Choice("dapo")
    assert taken("da", dapo) == taken("", dapo) == "dapo" and taken("grpo,da", dapo) == "grpo, dapo"
    assert chosen([dapo], "grpo, dapo") == dapo and chosen([dapo], "da") is None


def test_what_plugins_and_tenants_wrote_is_safe() -> None:
    rows = [environment(HOSTILE, "broken", HOSTILE)]
    kept = version(1, 1)
    for choice in (*of_environments(rows, ()), *of_versions([kept])):
        assert "\x1b" not in choice.note and "\u202e" not in choice.note and "\n" not in choice.note
