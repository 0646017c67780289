"""Each mistake of a task file has the file, the line and the column of its key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError, MarlaasError, ReferenceMissing, UnknownTask
from marlaas.engine.queue.submission.queue import check_data, check_environments
from marlaas.engine.queue.submission.references import find_starts, link
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.store.rows import EnvironmentRow

SUMS = EnvironmentRow(
    "sums/sums",
    "v1",
    "ready",
    ({"name": "digits", "type": "int", "default": 2, "required": False},),
    "",
    "",
    "",
    0,
    "",
    0.0,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task file that is named without its folder, as most people do."""
    monkeypatch.chdir(tmp_path)
    return Path("t.toml")


def told(error: MarlaasError) -> list[str]:
    """Place and cause of each mistake."""
    return [mistake.message for mistake in error.mistakes]


def test_all_mistakes_of_a_file_in_its_order(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\n'
        "stepps = 40\n"
        "\n"
        "[sampling]\n"
        "  max_tokens = 0\n"
        "[train]\n"
        'loss = "ppoo"\n'
        "discount = 0.5\n"
        "[[eval.suite]]\n"
        'name = "far"\n'
        "[policies.solver]\n"
        "rank = 1_000\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert told(caught.value) == [
        "t.toml:1:1: 'name' is missing.",
        "t.toml:1:1: 'environment' is missing.",
        "t.toml:1:1: [agents] is missing.",
        "t.toml:2:1: unknown key 'stepps'.",
        "t.toml:5:3: 'sampling.max_tokens' is 0; it must lie between 1 and 131072.",
        "t.toml:7:1: 'train.loss' is 'ppoo'.",
        "t.toml:8:1: 'train.discount' is 0.5, but 'train.advantage_level' is \"episode\": all that an episode is"
        " paid counts alike.",
        "t.toml:9:8: 'eval.suite[0].environment' is missing.",
        "t.toml:12:1: 'policies.solver.rank' is 1000; it must lie between 1 and 512.",
    ]
    again = pickle.loads(pickle.dumps(caught.value))
    assert told(again) == told(caught.value) and again.exit_code == 2


def test_a_value_of_a_sweep_has_its_own_place(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\nname = "s"\nenvironment = "sums"\n'
        "train.learning_rate = [1e-4, 2, 3]\n"
        "[sweep]\n"
        '"sampling.temperature" = [1.0, 99]\n'
        "train.seed = [1, -1]\n"
        "train.lss = ['ppo']\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [words.partition(" ")[0] for words in told(caught.value)] == [
        "t.toml:4:30:",
        "t.toml:4:33:",
        "t.toml:6:32:",
        "t.toml:7:18:",
        "t.toml:8:7:",
    ]


def test_a_sweep_that_cannot_be_hides_no_other_mistake(file: Path) -> None:
    file.write_text('tenant = "lab"\nname = "s"\nsteps = []\nenvironment = 3\n[sweep]\ntenant = ["a"]\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [words.split()[0] for words in told(caught.value)] == ["t.toml:3:1:", "t.toml:4:1:", "t.toml:6:1:"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("tenant = ", "t.toml:1:10: is not valid TOML"),
        ('a = 1\nb = "x', "t.toml:2:7: is not valid TOML"),
        ("a", "t.toml"),
    ],
)
def test_what_is_no_toml_has_a_place_too(file: Path, text: str, where: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.message.startswith(where) and "at line" not in caught.value.message


def test_what_an_environment_does_not_take(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\nname = "m"\n'
        '[[mixture]]\nenvironment = "sums"\nconfig = { digits = "two", digit = 3 }\n'
        '[[mixture]]\nenvironment = "smus"\n'
        '[[eval.suite]]\nname = "far"\nenvironment = "fra"\n'
    )
    with pytest.raises(ConfigError) as caught:
        check_environments(load(file), [SUMS])
    assert told(caught.value) == [
        "t.toml:5:12: 'digits' of sums/sums must be a whole number, not 'two'.",
        "t.toml:5:28: The environment 'sums/sums' has no parameter 'digit'.",
        "t.toml:7:1: There is no environment 'smus'.",
        "t.toml:10:1: The suite 'far': There is no environment 'fra'.",
    ]


def test_members_of_a_sweep_tell_a_mistake_once(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\nname = "s"\nenvironment = "sums"\ntrain.seed = [1, 2, 3]\n[environment_config]\ndigit = 3\n'
    )
    with pytest.raises(ConfigError) as caught:
        check_environments(load(file), [SUMS])
    assert told(caught.value) == ["t.toml:6:1: The environment 'sums/sums' has no parameter 'digit'."]


def test_references_and_rows_have_places(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\nname = "s"\nenvironment = "sums"\n'
        '[queue]\ndepends_on = [7, "before"]\n'
        "[policies.a]\nstart = '9@best'\n[policies.b]\nfrozen = './gone'\n[agents]\nx = 'a'\ny = 'b'\n"
        '[data]\npath = "rows.jsonl"\n'
    )
    tasks = load(file)
    with pytest.raises(UnknownTask) as unknown:
        link(tasks, [])
    assert [words.split()[0] for words in told(unknown.value)] == ["t.toml:5:15:", "t.toml:5:18:"]
    with pytest.raises(ReferenceMissing) as missing:
        find_starts(tasks, None)
    assert [words.split()[0] for words in told(missing.value)] == ["t.toml:7:1:", "t.toml:9:1:"]
    with pytest.raises(ConfigError, match=r"^t\.toml:14:1: no rows for 'train': there is no"):
        check_data(tasks)


def test_a_long_path_keeps_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "a_folder_of_some_length" / "and_another_one"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text("x = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(folder / "task.toml")
    assert caught.value.where == f"{folder}/task.toml:1:1"
    assert caught.value.message.startswith("…/and_another_one/task.toml:1:1: ")
