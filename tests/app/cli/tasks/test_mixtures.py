"""Tasks of several environments on the command line and in the list of environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.app.tui.screens.environments import used_by
from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission.queue import check_environments
from marlaas.engine.queue.submission.taskfile import ToPlay, environments_of, submission
from marlaas.engine.spec.task import ComponentSpec, TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import Evaluation, NewVersion

from ...commanding import Commander
from ...filling import Filling

PARTS = (ComponentSpec("arithmetic", 3.0, {"digits": 2}), ComponentSpec("guess/guess", name="hard"))
MIXED = TaskSpec("lab", "both", mixture=PARTS)


@pytest.fixture
def task(filling: Filling) -> int:
    """A mixture with one evaluation, and its environments."""
    filling.environment("arithmetic/arithmetic", "ready")
    filling.environment("guess/guess", "ready")
    (number,) = submit(filling.path, [submission(MIXED)])
    store = Store(filling.path, "tiny")
    policy = store.versions.policy(number, "policy", {})
    version = store.versions.commit_first(policy, NewVersion(0, "v0", "c", "adapters/v0.safetensors", 1))
    for suite, score, failures in (("arithmetic", 0.75, 0), ("hard", 0.25, 1), ("", 0.625, 1)):
        evaluation = Evaluation(0, "a+g", score, 0.1, 20, None, {}, failures, 10, 2, "s" + suite, suite)
        store.evaluations.add(policy, version.id, evaluation)
    store.close()
    return number


def test_show_says_what_is_mixed_and_how_each_does(task: int, marlaas: Commander) -> None:
    out = marlaas("show", str(task)).out
    assert "  environment  arithmetic + guess/guess" in out
    assert "  held-out     0.62" in out or "  held-out     0.63" in out
    shown = [text.split(maxsplit=1)[1] for text in out.splitlines() if text.startswith("  component ")]
    assert shown == [
        "arithmetic 75%, held-out 0.75 ± 0.10 at step 0 (10 prompts, 2 samples of each)",
        "hard 25%, held-out 0.25 ± 0.10 at step 0 (10 prompts, 2 samples of each, 1 of 21 episodes failed)",
    ]
    assert "arithmetic + guess/guess" in marlaas("list").out


def test_each_environment_knows_who_uses_it(task: int, filling: Filling) -> None:
    with Reader(filling.path) as reader:
        rows, tasks = {row.name: row for row in reader.environments()}, reader.tasks()
    assert all([one.id for one in used_by(rows[name], tasks)] == [task] for name in rows)


@pytest.mark.parametrize(
    ("names", "hurried"),
    [({"arithmetic"}, True), ({"guess/guess", "x"}, True), ({"guess", "arith"}, False), (set(), False)],
)
def test_a_repaired_component_wakes_the_task(task: int, filling: Filling, names: set[str], hurried: bool) -> None:
    store = Store(filling.path, "tiny")
    store.tasks.try_again(task, 1e12, "blocked")
    store.tasks.hurry(names)
    (row,) = store._database.query("SELECT due FROM tasks")
    store.close()
    assert (row["due"] == 0) is hurried


def test_every_component_is_checked(task: int, filling: Filling) -> None:
    with Reader(filling.path) as reader:
        rows = reader.environments()
    assert environments_of(submission(MIXED)) == [
        ToPlay("arithmetic", {"digits": 2}, None),
        ToPlay("guess/guess", {}, None),
    ]
    for parts, path in (
        ((*PARTS, ComponentSpec("gess")), "mixture[2].environment"),
        ((ComponentSpec("arithmetic"), ComponentSpec("guess", config={"diggits": 2})), "mixture[1].config.diggits"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_environments([submission(TaskSpec("lab", "both", mixture=parts))], rows)
        assert caught.value.path == path and caught.value.hint


def test_a_mixture_is_a_file_like_any_other(task: int, marlaas: Commander, tmp_path: Path) -> None:
    text = marlaas("show", str(task), "--toml").out
    file = tmp_path / "both.toml"
    file.write_text(text)
    said = marlaas("submit", str(file), "--check", "--json")
    assert said.code == 0 and said.json["tasks"][0]["environment"] == "arithmetic + guess/guess"
    assert [one["environment"] for one in said.json["prompts"]] == ["arithmetic", "guess/guess"]


def test_a_mean_over_environments_is_not_paired(task: int, filling: Filling, marlaas: Commander) -> None:
    submit(filling.path, [submission(MIXED)])
    store = Store(filling.path, "tiny")
    policy = store.versions.policy(2, "policy", {})
    store.evaluations.add(policy, 0, Evaluation(0, "a+g", 0.5, 0.1, 20, None, {}, 0, 10, 2, "s"))
    store.close()
    (pair,) = marlaas("compare", str(task), "2", "--json").json["paired"]
    assert pair["problem"] == "not paired: a mixture"
