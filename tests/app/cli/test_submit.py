"""submit and eval: all files or none, and a sentence for whatever is wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from marlaas.app.output import MOST_MISTAKES
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import ComponentSpec, TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import Evaluation, NewVersion

from ..commanding import Commander, FakeEngine
from ..filling import Filling

TASK = """
tenant = "physics-lab"
name = "{name}"
environment = "{environment}"
steps = 5

[environment_config]
{config}
"""


IN_FOLDER = 'tenant = "lab"\nname = "{name}"\nenvironment = "{environment}"\nsteps = 5\n{more}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where task files lie, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, environment: str = "arithmetic", more: str = "") -> str:
    Path(f"{name}.toml").write_text(IN_FOLDER.format(name=name, environment=environment, more=more))
    return f"{name}.toml"


def write(name: str, environment: str = "arithmetic", config: str = "digits = 2") -> str:
    Path(f"{name}.toml").write_text(TASK.format(name=name, environment=environment, config=config))
    return f"{name}.toml"


def queued(home: Home) -> list[str]:
    with opened(home) as reader:
        return [task.name for task in reader.tasks()]


def test_submit(filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    filling.environment()
    engine.living = False
    said = marlaas("submit", write("one"), write("two"))
    assert said.code == 0 and said.out.splitlines()[0] == "task 1: physics-lab/one, 5 steps"
    assert engine.asked == ["start"] and queued(home) == ["one", "two"]
    assert marlaas("submit", write("three"), "--json").json == {"ids": [3], "submitted_before": {}}
    filling.engine()
    filling.execute("UPDATE engines SET rest = 'yielded'")
    assert "tasks wait; `marlaas engine resume` takes it back" in marlaas("submit", write("four")).err


@pytest.mark.parametrize(
    ("environment", "config", "sentence"),
    [
        ("arithmetik", "", "There is no environment 'arithmetik'."),
        ("arithmetic", "digits = 'two'", "must be a whole number from 1 to 9, not 'two'"),
    ],
)
def test_all_or_none(
    filling: Filling,
    home: Home,
    marlaas: Commander,
    engine: FakeEngine,
    environment: str,
    config: str,
    sentence: str,
) -> None:
    filling.environment()
    said = marlaas("submit", write("good"), write("bad", environment, config))
    assert said.code == 2 and said.out == "" and sentence in said.err
    assert queued(home) == []


PIG = """from marlaas.plugins import *

@env
async def pig(agent, {parameter}: int = 2):
    return 0.0
"""


def test_files_count_more_than_what_was_served(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine
) -> None:
    """The old file is gone, its rows are still there. What cannot be read counts as it was served."""
    filling.environment("old/pig")
    home.plugins.mkdir()
    (home.plugins / "new.py").write_text(PIG.format(parameter="sides"))
    assert marlaas("submit", write("renamed", "pig", "sides = 6")).code == 0
    assert "no parameter 'dice'" in marlaas("submit", write("wrong", "pig", "dice = 6")).err
    (home.plugins / "old.py").write_text("def broken(")
    filling.environment("old/cow")
    assert "must be a whole number" in marlaas("submit", write("broken", "old/cow", "digits = 'two'")).err
    assert queued(home) == ["renamed"]


def test_all_that_is_wrong_with_a_file_is_told_at_once(
    filling: Filling, marlaas: Commander, engine: FakeEngine
) -> None:
    """Also what only the home can know: that there is no such environment, or that it has no such parameter."""
    filling.environment()
    first = write("first", "arithmetik", "digits = 2\n[train]\nlerning_rate = 1e-4")
    second = write("second", "arithmetic", "digit = 2\n[train]\nrank = 4")
    said = marlaas("submit", first, second)
    told = [line for line in said.err.splitlines() if line.startswith("marlaas: ")]
    assert said.code == 2 and engine.asked == []
    assert [[word for word in ("arithmetik", "lerning_rate", "'digit'", "rank") if word in line] for line in told] == [
        ["arithmetik"], ["lerning_rate"], ["'digit'"], ["rank"]
    ]  # fmt: skip
    assert "first.toml:4:1" in told[0] and "second.toml:8:1" in told[2], "each at its place, in the order of the files"


def test_of_many_mistakes_the_first_are_told(marlaas: Commander, engine: FakeEngine) -> None:
    said = marlaas("submit", write("many", config="".join(f"wrong{n} = 1\n" for n in range(60))))
    assert said.code == 2 and said.err.count("'wrong") == MOST_MISTAKES == 50
    assert said.err.endswith("marlaas: 10 more mistakes are not shown.\n")


def test_a_dependency_must_exist(filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    filling.environment()
    for number, code in ((1, 2), (1, 0)):
        said = marlaas("submit", write("next", config=f"digits = 2\n[queue]\ndepends_on = [{number}]"))
        assert said.code == code and ("'next' depends on task 1, which does not exist" in said.err) == bool(code)
        filling.task()


def test_a_sweep_is_one_line_and_many_tasks(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine
) -> None:
    filling.environment()
    said = marlaas("submit", write("alone"), write("sums", config="[train]\nseed = [1, 2, 3]"))
    assert said.out.splitlines() == [
        "task 1: physics-lab/alone, 5 steps",
        "tasks 2 to 4: physics-lab/sums, a sweep of 3 tasks",
    ]
    assert queued(home)[1:] == ["sums [seed=1]", "sums [seed=2]", "sums [seed=3]"]


def test_names_link_the_files_of_one_submission(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine
) -> None:
    filling.environment()
    after = "digits = 2\n[queue]\ndepends_on = ['{}']"
    assert marlaas("submit", write("next", config=after.format("first")), write("first")).code == 0
    with opened(home) as reader:
        assert [task.id for task in reader.needs(1)] == [2] and reader.needs(2) == []
    said = marlaas("submit", write("a", config=after.format("b")), write("b", config=after.format("a")))
    assert said.code == 2 and "These tasks wait for each other: 'a' -> 'b' -> 'a'." in said.err
    assert queued(home) == ["next", "first"]


@pytest.mark.processes
def test_check_shows_and_changes_nothing(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    engine.living = False
    files = write("sums", config="[train]\nseed = [1, 2]"), write("x", config="[queue]\ndepends_on = ['sums']")
    said = marlaas("submit", "--check", *files)
    assert said.code == 0 and said.err == "3 tasks would be queued; nothing was changed.\n"
    assert said.out.splitlines()[3].split(None, 6)[5:] == ["?", "sums [seed=1], sums [seed=2]"]
    assert "time     unknown: no task here has trained on arithmetic yet" in said.out
    assert "prompt 3 of arithmetic" in said.out and "user       " in said.out
    shown = marlaas("submit", "--check", *files, "--json").json
    assert [task["after"] for task in shown["tasks"]] == [[], [], ["sums [seed=1]", "sums [seed=2]"]]
    assert shown["tasks"][0]["estimate"]["seconds"] is None and shown["estimate"]["disk"] > 0
    assert len(shown["prompts"]) == 1 and len(shown["prompts"][0]["prompts"]) == 3
    assert not home.root.exists() and engine.asked == []
    said = marlaas("submit", "--check", write("bad", config="digit = 2"))
    assert said.code == 2 and "has no parameter 'digit'" in said.err
    Filling(home.database).environment()
    said = marlaas("submit", "--check", write("bad", config="digit = 2"))
    assert said.code == 2 and "has no parameter 'digit'" in said.err


COMPARED = """
from marlaas.plugins import Skip, env

@env
async def sums(ep):
    if "skip" in "{says}":
        raise Skip("an unusable draw")
    reply = await ep.ask("2 + 2?")
    return {says} == "4"
"""


@pytest.mark.parametrize(
    ("says", "checked", "warned"),
    [
        ("reply", None, True),
        ("reply.text", None, False),
        ("reply.text", "told", True),
    ],
)
def test_a_grader_that_no_reply_satisfies_is_named(
    filling: Filling,
    home: Home,
    marlaas: Commander,
    engine: FakeEngine,
    says: str,
    checked: str | None,
    warned: bool,
) -> None:
    """What the engine's checks found is said; an environment that they have not reached is played for it."""
    home.plugins.mkdir(parents=True, exist_ok=True)
    plugin = home.plugins / "mine.py"
    plugin.write_text(COMPARED.format(says=says))
    filling.environment("mine/sums")
    filling.execute(f"UPDATE environments SET path = '{plugin}'")
    if checked:
        message = "a Reply is compared with a str: compare reply.text"
        findings = json.dumps([{"check": "junk", "level": "error", "message": message}]) if checked == "told" else "[]"
        row = {"environment": "mine/sums", "version": "9f2c41aa", "base": "", "findings": findings, "created": 1.0}
        filling.insert("conformance", **row)
    said = marlaas("submit", write("one", environment="sums", config=""))
    assert said.code == 0 and queued(home) == ["one"]
    assert ("error: mine/sums: " in said.err) is warned and ("compare reply.text" in said.err) is warned


def test_the_same_file_is_in_the_queue(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.environment()
    assert marlaas("submit", put("one")).err == "`marlaas` shows them; they go on when it is closed.\n"
    filling.execute("UPDATE tasks SET state = 'running'")
    said = marlaas("submit", "one.toml")
    assert said.code == 0 and said.out == "task 2: lab/one, 5 steps\n"
    assert said.err.splitlines()[0] == (
        "one.toml: the same file waits or runs already, as task 1. Both are in the queue; `marlaas cancel 2` takes this"
        " one back."
    )
    assert marlaas("submit", "one.toml", "--json").json == {"ids": [3], "submitted_before": {"3": [1, 2]}}
    filling.execute("UPDATE tasks SET state = 'done'")
    assert marlaas("submit", "one.toml", "--json").json == {"ids": [4], "submitted_before": {}}


@pytest.mark.processes
def test_a_refused_submission_starts_no_engine(
    home: Home, filling: Filling, marlaas: Commander, engine: FakeEngine
) -> None:
    """Neither where no engine has ever looked for environments, nor where the last one saw others than there are."""
    engine.living = False
    for seen in (False, True):
        if seen:
            filling.environment("games/guess")
        said = marlaas("submit", put("typo", "arithmetik"))
        assert said.code == 2 and said.err.startswith("marlaas: typo.toml:3:1: There is no environment 'arithmetik'.")
        assert "Did you mean 'arithmetic'?" in said.err
        wrong = put("wrong", more="[environment_config]\ndigit = 2\ndigits = 'two'\n")
        said = marlaas("submit", put("typo", "arithmetik"), wrong)
        assert said.code == 2 and said.err.count("marlaas: ") == 3
        assert "wrong.toml:6:1: The environment" in said.err and "wrong.toml:7:1: 'digits'" in said.err
    assert engine.asked == []


@pytest.mark.processes
def test_an_environment_that_the_last_engine_did_not_see(
    home: Home, filling: Filling, marlaas: Commander, engine: FakeEngine
) -> None:
    """It was dropped while no engine ran: nothing is refused, and the engine that is started serves it."""
    engine.living = False
    filling.environment("games/guess")
    home.create()
    source = "from marlaas.plugins import Episode, env\n\n\n@env\nasync def echo(ep: Episode, size: int = 2) -> bool:\n"
    (home.plugins / "letters.py").write_text(source + "    return bool((await ep.ask('x')).text)\n")
    refused = marlaas("submit", put("bad", "echo", "[environment_config]\nsiz = 3\n"))
    assert refused.code == 2 and "bad.toml:6:1: The environment 'letters/echo' has no parameter 'siz'." in refused.err
    assert engine.asked == []
    assert not marlaas("submit", "--check", put("good", "echo")).code
    assert engine.asked == []


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
        evaluation = Evaluation(
            step=0,
            environment_version="a+g",
            score=score,
            stderr=0.1,
            n=20,
            floor=None,
            metrics={},
            failures=failures,
            prompts=10,
            samples=2,
            series="s" + suite,
            suite=suite,
        )
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


def test_a_mixture_is_a_file_like_any_other(task: int, marlaas: Commander, tmp_path: Path) -> None:
    text = marlaas("show", str(task), "--toml").out
    file = tmp_path / "both.toml"
    file.write_text(text)
    said = marlaas("submit", str(file), "--check", "--json")
    assert said.code == 0 and said.json["tasks"][0]["environment"] == "arithmetic + guess/guess"
    assert [one["environment"] for one in said.json["prompts"]] == ["arithmetic", "guess/guess"]


@pytest.fixture
def trained(filling: Filling, engine: FakeEngine) -> Filling:
    """Task 1 has versions 2 (best) and 3 (last); its replies are short."""
    filling.environment()
    filling.task(name="sums", made=3)
    config = "json_set(config, '$.sampling', json('{\"max_tokens\": 7, \"max_episode_tokens\": 64}'))"
    filling.execute(f"UPDATE tasks SET config = {config}, environment = 'arithmetic'")
    filling.execute("UPDATE tasks SET config = json_set(config, '$.environment', 'arithmetic')")
    filling.execute("""UPDATE tasks SET config = json_set(config, '$.environment_config', json('{"digits": 2}'))""")
    return filling


def config_of_second(home: Home) -> dict[str, Any]:
    with opened(home) as reader:
        return reader.task_config(2)


def test_what_is_left_out_is_as_in_the_task(trained: Filling, home: Home, marlaas: Commander) -> None:
    said = marlaas("eval", "1@best", "base")
    assert said.code == 0 and said.out == "task 2: 2 versions to measure on arithmetic\n"
    config = config_of_second(home)
    assert (config["kind"], config["versions"], config["steps"]) == ("eval", ["1@best", "base"], 2)
    assert config["environment_config"] == {"digits": 2} and config["sampling"]["max_tokens"] == 7
    assert config["tenant"] == "physics-lab"
    with opened(home) as reader:
        task = reader.task(2)
    assert task is not None and task.kind == "eval" and task.trained == ("1@best", "base")


def test_everything_can_be_said(trained: Filling, home: Home, marlaas: Commander) -> None:
    words = ("--environment", "arithmetic", "--set", "digits=3", "--prompts", "5", "--temperature", "0.5")
    more = ("--split", "test", "--max-tokens", "9", "--tenant", "me", "--name", "mine", "--priority", "3", "--json")
    assert marlaas("eval", "1@3", *words, *more).json == {"ids": [2]}
    config = config_of_second(home)
    assert config["eval"]["prompts"] == 5 and config["eval"]["split"] == "test" and config["eval"]["temperature"] == 0.5
    assert config["environment_config"] == {"digits": 3}, "of the type that the environment declares"
    assert (config["tenant"], config["name"], config["queue"]["priority"]) == ("me", "mine", 3)
    assert config["sampling"]["max_tokens"] == 9


def test_the_rows_of_the_task_are_measured(trained: Filling, marlaas: Commander) -> None:
    """Not those of its environment, which it has never been trained on."""
    rows = {"path": "/data/sums.jsonl", "columns": {"question": "prompt"}, "split": {"eval": 0.2}, "limit": 0}
    trained.execute(f"UPDATE tasks SET config = json_set(config, '$.data', json('{json.dumps(rows)}'))")
    printed = tomllib.loads(marlaas("eval", "1@best", "--toml").out)
    assert printed["data"] == {key: value for key, value in rows.items() if key != "limit"}
    other = tomllib.loads(marlaas("eval", "1@best", "--environment", "guess", "--toml").out)
    assert "data" not in other, "another environment has rows of its own"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("base",), "No environment is given to measure on"),
        (("7@best",), "There is no adapter '7'"),
        (("1@99",), "has no version '99' on disk"),
        (("1@best", "--agents", "second"), "is no AGENT=VERSION"),
        (("1@best", "--set", "dgits=1"), "has no parameter 'dgits'"),
        (("./nowhere", "--environment", "arithmetic"), "cannot be read"),
    ],
)
def test_what_cannot_be_measured(trained: Filling, marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("eval", *words)
    assert said.code in (1, 2)
    assert sentence in said.err


def measured(filling: Filling) -> None:
    """Task 2 has measured one of its two versions."""
    policy = filling.insert("policies", task=2, name="1@best", config="{}", step=1, split="eval")
    filling.insert(
        "evals",
        policy=policy,
        step=2,
        environment_version="e1",
        series="s1",
        score=0.75,
        stderr=0.05,
        n=62,
        failures=2,
        prompts=62,
        created=1.0,
        floor=0.25,
    )


def test_scores_are_shown(trained: Filling, marlaas: Commander) -> None:
    marlaas("eval", "1@best", "base")
    measured(trained)
    shown = marlaas("show", "2").out
    assert "measured     1 of 2" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["1@best", "0.75", "0.05", "62", "2", "62", "0.25"],
        ["base", "-", "-", "-", "-", "-", "-"],
    ]
    said = marlaas("show", "2", "--json").json
    assert said["kind"] == "eval" and said["measured"]["1@best"]["failures"] == 2 and said["measured"]["base"] is None
    listed = marlaas("list").out
    assert "1/2" in listed and "measured" in listed


def group_of(filling: Filling, policy: int, prompt: int, reward: float) -> None:
    group = filling.insert(
        "groups",
        policy=policy,
        split="eval",
        number=prompt,
        instance=prompt,
        version=2,
        environment_version="e1",
        state="complete",
        step=2,
        created=1.0,
    )
    filling.insert("trajectories", group=group, member=0, agent="agent", status="ok", reward=reward)


def test_versions_are_compared_by_prompt(trained: Filling, marlaas: Commander) -> None:
    marlaas("eval", "1@best", "1@3")
    rewards = {"1@best": (1.0, 1.0, 1.0, 0.0), "1@3": (0.0, 1.0, 0.0, 0.0)}
    for name, by_prompt in rewards.items():
        policy = trained.insert("policies", task=2, name=name, config="{}", step=1)
        row = {"policy": policy, "step": 2, "environment_version": "e1", "series": "s1", "n": 4, "created": 1.0}
        trained.insert("evals", score=sum(by_prompt) / 4, **row)
        for prompt, reward in enumerate(by_prompt):
            group_of(trained, policy, prompt, reward)
    (pair,) = marlaas("compare", "2", "--json").json["paired"]
    # differences -1, 0, -1, 0; see tests/app/text/test_scores.py
    assert (pair["of"], pair["against"], pair["mean"], pair["prompts"]) == ("2 1@3", "2 1@best", -0.5, 4)
    assert pair["low"] == pytest.approx(-0.5 - 3.1824463 * (1 / 12) ** 0.5)
    said = marlaas("compare", "2")
    assert "-0.500 (-1.419 to +0.419)" in said.out and "paired t test" in said.err
    (other,) = [task for task in marlaas("compare", "1", "2", "--json").json["paired"] if task["of"] == "2 1@3"]
    assert other["problem"] == "not paired: another series"
