"""States and submissions: what may follow what, and what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.engine.queue.submission.queue import check_environment, check_environments, find_environment
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.queue.submission.transitions import TRANSITIONS, next_state
from marlaas.engine.spec.task import ComponentSpec, DataSpec, TaskSpec, TrainSpec, parse
from marlaas.engine.spec.validation import UNKNOWN
from marlaas.engine.store.rows import ACTIVE, FINISHED, EnvironmentRow
from marlaas.engine.store.submissions import Submission


def served(name: str, *parameters: dict[str, object], version: str = "abc") -> EnvironmentRow:
    return EnvironmentRow(name, version, "ready", tuple(parameters), "", "", "", 0, "", 0.0)


DIGITS: dict[str, object] = {"name": "digits", "type": "int", "default": 2, "required": False}


def task(environment: str, **config: object) -> TaskSpec:
    return TaskSpec("t", "n", environment, environment_config=dict(config))


ON_AGAIN = {
    ("retry", "failed"),
    ("retry", "cancelled"),
    ("extend", "done"),
    *(("rollback", state) for state in FINISHED),
}


def test_finished_tasks_accept_only_ways_to_go_on() -> None:
    for command in TRANSITIONS:
        for state in FINISHED:
            if (command, state) in ON_AGAIN:
                assert next_state(command, state) == "queued"
            else:
                with pytest.raises(ConfigError, match=state):
                    next_state(command, state)


def test_every_command_leads_to_a_known_state() -> None:
    assert {s for table in TRANSITIONS.values() for s in table.values()} <= {*ACTIVE, *FINISHED}


def test_finds_environments_by_their_short_or_whole_name() -> None:
    rows = [served("a/add"), served("b/guess")]
    assert find_environment("add", rows).name == "a/add"
    assert find_environment("b/guess", rows).name == "b/guess"


def test_missing_and_ambiguous_environments_name_the_choices() -> None:
    rows = [served("a/add"), served("b/add"), served("b/guess")]
    with pytest.raises(EnvironmentMissing, match="a/add, b/add"):
        find_environment("add", rows)
    with pytest.raises(EnvironmentMissing, match="Did you mean 'guess'"):
        find_environment("gues", rows)


@pytest.mark.parametrize(
    ("rows", "path", "says"),
    [
        ("", "x.jsonl", "'a/add' draws its tasks from no rows"),
        ("task", "", "'a/add' has no rows of its own"),
        ("", "", None),
        ("own", "", None),
        ("own", "x.jsonl", None),
        ("task", "x.jsonl", None),
    ],
)
def test_rows_are_named_where_the_environment_takes_them(rows: str, path: str, says: str | None) -> None:
    given = submission(replace(task("add"), data=DataSpec(path)))
    if says is None:
        return check_environment(given, [replace(served("a/add"), rows=rows)])
    with pytest.raises(ConfigError, match=says):
        check_environment(given, [replace(served("a/add"), rows=rows)])


def test_difficulty_needs_rows_to_choose_from() -> None:
    given = submission(replace(task("add"), train=TrainSpec(sampling="difficulty")))
    for environment in (replace(served("a/add"), rows="own"), served("a/add", version="")):
        check_environment(given, [environment])
    with pytest.raises(ConfigError, match=r"so 'train.sampling' has n") as caught:
        check_environment(given, [replace(served("a/add"), rows="")])
    assert caught.value.path == "train.sampling"


@pytest.mark.parametrize(
    ("rows", "path", "says"),
    [
        ("", "x.jsonl", r"no rows, so 'mixture\[1\].data.path' would have no effect"),
        ("task", "", r"no rows of its own. Name some as 'path' below \[mixture.data\], behind its own table"),
        ("", "", None),
        ("task", "x.jsonl", None),
    ],
)
def test_each_component_names_its_own_rows(rows: str, path: str, says: str | None) -> None:
    parts = (ComponentSpec("guess"), ComponentSpec("add", data=DataSpec(path)))
    given = submission(replace(task(""), mixture=parts))
    environments = [served("a/guess"), replace(served("a/add"), rows=rows)]
    if says is None:
        return check_environment(given, environments)
    with pytest.raises(ConfigError, match=says) as caught:
        check_environment(given, environments)
    assert caught.value.path == "mixture[1].data.path"


def test_configuration_is_checked_before_the_queue_takes_it() -> None:
    rows = [served("a/add", DIGITS)]
    check_environment(submission(task("add", digits=3)), rows)
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        check_environment(submission(task("add", digit=3)), rows)
    with pytest.raises(ConfigError, match="'digits' of a/add must be a whole number, not '3'"):
        check_environment(submission(task("add", digits="3")), rows)
    with pytest.raises(ConfigError, match="must be a whole number, not True"):
        check_environment(submission(task("add", digits=True)), rows)


def test_bounds_and_choices_are_checked_first() -> None:
    level: dict[str, object] = {"name": "level", "type": "str", "default": "easy", "required": False}
    rows = [served("a/add", DIGITS | {"low": 1, "high": 4}, level | {"choices": ["easy", "hard"]})]
    check_environment(submission(task("add", digits=4, level="hard")), rows)
    with pytest.raises(ConfigError, match="must be a whole number from 1 to 4, not 5"):
        check_environment(submission(task("add", digits=5)), rows)
    with pytest.raises(ConfigError, match="'level' of a/add must be one of 'easy', 'hard', not 'odd'"):
        check_environment(submission(task("add", level="odd")), rows)


def test_a_broken_environment_is_no_reason_to_refuse() -> None:
    check_environment(submission(task("add", anything=1)), [served("a/add", version="")])


def test_an_environment_may_be_queued_before_its_plugin_serves() -> None:
    """It waits for a person to allow its libraries, or is being loaded: which environments it has is not sure yet."""
    waiting = replace(served("chain/uses", version=""), state="waiting")
    unknown = replace(served("games", version=""), state="building")
    rows = [waiting, unknown, served("add/sums")]
    for name in ("uses", "chain/uses", "chain/another", "chain"):
        assert find_environment(name, rows) is waiting
    assert find_environment("games/guess", rows) is unknown
    for nowhere in ("guess", "nowhere/uses", "add/uses"):
        with pytest.raises(EnvironmentMissing):
            find_environment(nowhere, rows)
    assert find_environment("uses", [*rows, served("other/uses")]).name == "other/uses", "what serves goes first"


def test_a_try_that_is_due_later_may_be_made_at_once() -> None:
    assert next_state("retry", "queued") == "queued"
    with pytest.raises(ConfigError, match="marlaas resume"):
        next_state("retry", "paused")


def test_a_command_of_a_newer_program_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="knows no command 'hurry'"):
        next_state("hurry", "failed")


def test_of_several_tasks_the_one_at_fault_is_named() -> None:
    good, bad = submission(task("add")), submission(replace(task("add", digit=3), name="second"))
    rows = [served("a/add", DIGITS)]
    with pytest.raises(ConfigError, match="second: The environment 'a/add' has no parameter 'digit'") as raised:
        check_environments([good, bad], rows)
    assert (raised.value.path, raised.value.code) == ("environment_config.digit", UNKNOWN)
    with pytest.raises(ConfigError, match=r"^The environment 'a/add' has no parameter 'digit'"):
        check_environments([bad], rows)


def test_environments_of_suites_are_checked() -> None:
    def measured(**suite: object) -> Submission:
        one = {"name": "far", "environment": "far", "config": {}, **suite}
        table = {"tenant": "t", "name": "n", "environment": "sums", "eval": {"suite": [one]}}
        return submission(parse(table, "the task"))

    rows = [served("a/sums"), served("b/far")]
    check_environment(measured(), rows)
    with pytest.raises(EnvironmentMissing, match="The suite 'far': There is no environment 'fra'"):
        check_environment(measured(environment="fra"), rows)
    with pytest.raises(ConfigError, match=r"The suite 'far': .* has no parameter 'size'"):
        check_environment(measured(config={"size": 3}), rows)
    table = [rows[0], replace(rows[1], rows="task")]
    check_environment(measured(data={"path": "x.jsonl"}), table)
    with pytest.raises(ConfigError, match=r"The suite 'far': .* Name some as 'path' below \[eval.suite.data\]"):
        check_environment(measured(), table)
    with pytest.raises(ConfigError, match=r"so 'eval.suite\[0\].data.path' would have no effect"):
        check_environment(measured(data={"path": "x.jsonl"}), [rows[0], replace(rows[1], rows="")])


def test_agents_of_an_evaluation_are_checked() -> None:
    def check(agents: dict[str, str], declared: tuple[str, ...]) -> None:
        table = {"tenant": "t", "name": "n", "environment": "duel", "kind": "eval", "versions": ["base"]}
        spec = parse({**table, "eval": {"agents": agents}}, "the task")
        check_environment(submission(spec), [replace(served("a/duel"), agents=declared)])

    check({"second": "base"}, ("first", "second"))
    check({}, ())
    for agents, declared, sentence in (
        ({"second": "base"}, (), "does not declare its agents"),
        ({"third": "base"}, ("first", "second"), "has no agent 'third'"),
        ({"first": "base", "second": "base"}, ("first", "second"), "leaves no agent"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check(agents, declared)
