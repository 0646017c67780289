"""Task files: what is said, what is defaulted, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission.taskfile import demo_tasks, load
from marlaas.engine.spec.task import parse

MINIMAL = 'tenant = "lab"\nname = "sums"\nenvironment = "arithmetic"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "task.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_fills_defaults_and_keeps_the_source(tmp_path: Path) -> None:
    (submission,) = load(write(tmp_path, MINIMAL))
    assert (submission.spec.tenant, submission.spec.steps, submission.source) == ("lab", 60, MINIMAL)
    assert submission.spec.to_json()["train"]["max_staleness"] == 2


def test_the_stored_configuration_makes_an_equal_spec(tmp_path: Path) -> None:
    text = MINIMAL + "[queue]\ndepends_on = [1, 'warm-up']\n[eval]\ntarget = 0.9\n[environment_config]\ndigits = 3\n"
    (submission,) = load(write(tmp_path, text))
    stored = json.loads(json.dumps(submission.spec.to_json()))
    assert parse(stored, "row").to_json() == submission.spec.to_json()


def test_thinking_is_wanted_refused_or_left_to_the_template(tmp_path: Path) -> None:
    for text, wanted in (
        ("", None),
        ("[sampling]\nthinking = true\n", True),
        ("[sampling]\nthinking = false\n", False),
    ):
        (submission,) = load(write(tmp_path, MINIMAL + text))
        assert parse(json.loads(json.dumps(submission.spec.to_json())), "row").sampling.thinking is wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tenant = ", "not valid TOML"),
        (MINIMAL + "[sampling]\nthinking = 1\n", "'sampling.thinking' is 1; it must be true or false"),
        (MINIMAL + "step = 3\n", "Did you mean 'steps'"),
        (MINIMAL + '[train]\nloss = "ppoo"\n', "'train.loss'"),
        (MINIMAL + "[train]\ndeterministic = true\n", "max_staleness"),
        (MINIMAL + "[sampling]\nmax_tokens = 300\nmax_episode_tokens = 256\n", "max_episode_tokens"),
        (MINIMAL.replace("lab", ""), "'tenant'"),
        (MINIMAL.replace("lab", "\\u001b[31m"), "'tenant'"),
        (MINIMAL + "[train]\ngroup_size = 1\n", "between 2 and"),
        (MINIMAL + f"[train]\nlearning_rate = {'9' * 400}\n", "'train.learning_rate'"),
        (MINIMAL + f"steps = {'9' * 5000}\n", "not valid TOML"),
        (MINIMAL + f"x = {'[' * 5000}{']' * 5000}\n", "not valid TOML"),
        (MINIMAL + f"[queue]\ndepends_on = [{'9' * 30}]\n", "'queue.depends_on'"),
        (MINIMAL + "[queue]\ndepends_on = [1.5]\n", "each entry a whole number or a text in quotes"),
        (MINIMAL + "[environment_config]\nwhen = 2020-01-01\n", "'environment_config.when' is 2020-01-01"),
        (MINIMAL + "[environment_config]\ninner = [{ x = nan }]\n", "'environment_config.inner.x' is nan"),
    ],
)
def test_refuses_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.toml") as caught:
        load(write(tmp_path, text))
    assert says in str(caught.value)


def test_folders_of_policies_count_from_the_file(tmp_path: Path) -> None:
    text = """
    [policies]
    solver = {start = "./begun"}
    critic = {frozen = "../other"}
    judge = {frozen = "17@best"}
    [agents]
    a = "solver"
    b = "critic"
    c = "judge"
    [eval]
    agents = {b = "./begun", c = "base"}
    """
    (submission,) = load(write(tmp_path, MINIMAL + text))
    policies, begun = submission.spec.to_json()["policies"], str(tmp_path / "begun")
    assert policies["solver"]["start"] == begun and policies["critic"]["frozen"] == str(tmp_path / "../other")
    assert policies["judge"]["frozen"] == "17@best" and submission.spec.eval.agents == {
        "b": begun,
        "c": "base",
    }


def test_refuses_what_is_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(binary)
    large = write(tmp_path, MINIMAL + "".join(f"k{number} = {number}\n" for number in range(100_000)))
    with pytest.raises(ConfigError, match=r"has 1\.5 MB, which no task file has"):
        load(large)


def test_the_demo_has_three_tenants_and_the_defaults() -> None:
    submissions = demo_tasks()
    assert len({s.spec.tenant for s in submissions}) == 3
    bare = parse({"tenant": "a", "name": "b", "environment": "c"}, "x")
    assert all(s.spec.train == bare.train and s.spec.policy == bare.policy for s in submissions)
