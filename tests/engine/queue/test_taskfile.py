"""Task files: defaults, what is refused, and the line and column of each mistake."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.queue import HomeBase, check_bases, check_data, check_environments
from marlaas.engine.queue.submission.references import find_starts, link
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.spec.task import parse
from marlaas.engine.store.rows import EnvironmentRow

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
        (MINIMAL + "[train]\ngroup_size = 1\n", "rewards are compared within a group. Write at least 2"),
        (MINIMAL + '[train]\nloss = "distill"\n', "there is nothing to learn. Name a teacher"),
        (MINIMAL + '[train]\nkl = 0.1\nkl_reference = " "\n', "which is no version of this home"),
        (MINIMAL + 'kind = "dpo"\n[train]\nkl_reference = "./mine"\n', "'./mine', which is no version of this home"),
        (MINIMAL + '[train]\nteacher_prompt = "Add."\n', "without 'train.kl' no reference reads it"),
        (MINIMAL + "[train]\nentropy_target = 0.5\n", "Set 'train.entropy', for example to 0.005"),
        (MINIMAL + '[train]\nloss = "sft"\n', '\'kind\' is "train". Write `kind = "sft"`'),
        (MINIMAL + 'kind = "sft"\n[sampling]\ntemperature = 0.5\n', "'kind' is \"sft\": nothing is sampled"),
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


def places(act: Callable[[], object]) -> list[str]:
    """The place of each mistake for which something is refused."""
    with pytest.raises(MarlaasError) as caught:
        act()
    return [words.split()[0] for words in told(caught.value)]


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


def test_a_value_of_a_sweep_has_its_keys_place(file: Path) -> None:
    file.write_text(
        'tenant = "lab"\nname = "s"\nenvironment = "sums"\n'
        "train.learning_rate = [1e-4, 2, 3]\n"
        "[sweep]\n"
        '"sampling.temperature" = [1.0, 99]\n'
        "train.seed = [1, -1]\n"
        "train.lss = ['ppo']\n"
    )
    assert places(lambda: load(file)) == ["t.toml:4:7:", "t.toml:4:7:", "t.toml:6:1:", "t.toml:7:7:", "t.toml:8:7:"]


def test_a_sweep_that_cannot_be_hides_no_other_mistake(file: Path) -> None:
    file.write_text('tenant = "lab"\nname = "s"\nsteps = []\nenvironment = 3\n[sweep]\ntenant = ["a"]\n')
    assert places(lambda: load(file)) == ["t.toml:3:1:", "t.toml:4:1:", "t.toml:6:1:"]


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
        "t.toml:5:1: 'digits' of sums/sums must be a whole number, not 'two'.",
        "t.toml:5:1: The environment 'sums/sums' has no parameter 'digit'.",
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
    assert places(lambda: link(tasks, [])) == ["t.toml:5:1:", "t.toml:5:1:"]
    assert places(lambda: find_starts(tasks, None, "tiny")) == ["t.toml:7:1:", "t.toml:9:1:"]
    with pytest.raises(ConfigError, match=r"^t\.toml:14:1: no rows for 'train': there is no"):
        check_data(tasks)


def test_an_adapter_of_the_hub_is_a_folder(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    words = 'tenant = "lab"\nname = "s"\nenvironment = "sums"\n[policy]\nstart = "hf:lab/sums{}"\n'
    file.write_text(words.format(""))
    with pytest.raises(ConfigError, match=r"^t\.toml:5:1: There is no adapter 'lab/sums' .*pull lab/sums` fetches it"):
        load(file)
    entry = tmp_path / "hub" / "models--lab--sums"
    (entry / "snapshots" / "abc").mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("abc")
    for revision in ("", "@abc"):
        file.write_text(words.format(revision))
        assert load(file)[0].spec.policy.start == str(entry / "snapshots" / "abc")
    file.write_text(words.format("/x"))
    with pytest.raises(ConfigError, match="is no name of an adapter"):
        load(file)


def test_layers_that_the_base_has_not_are_named(file: Path) -> None:
    words = 'tenant = "lab"\nname = "s"\nenvironment = "sums"\n[policy]\nrslora = true\ntargets = {}\n'
    home = HomeBase("tiny", load_base("tiny").fingerprint)
    for good in ('"attention"', '"q_proj, mlp"', '"layers.0.mlp.up_proj"', '"all"', '["attention", "all"]'):
        file.write_text(words.format(good))
        check_bases(load(file), home)
    file.write_text(words.format('"attention,c_attn"'))
    with pytest.raises(ConfigError, match=r"^t\.toml:6:1: No linear layer of the base is called 'c_attn'.*gate_proj"):
        check_bases(load(file), home)


def test_a_long_path_keeps_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "a_folder_of_some_length" / "and_another_one"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text("x = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(folder / "task.toml")
    assert caught.value.where == f"{folder}/task.toml:1:1"
    assert caught.value.message.startswith("…/and_another_one/task.toml:1:1: ")
