"""Exports from a home: the model card has what the store knows, and the hub gets the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

from marlaas.app.reading import opened
from marlaas.app.report.export import export, metadata, readme
from marlaas.engine.adapters.use import Exported
from marlaas.engine.home.paths import Home
from marlaas.engine.models.find import load_base
from marlaas.engine.store.rows import VersionRow
from tests.engine.models.hub_cache import HubCache

from .commanding import Commander
from .filling import HOSTILE, Filling
from .filling_adapters import with_silent_adapter
from .small_hub import TOKEN, SmallHub, small_hub

SOURCE = '# mine\ntenant = "physics-lab"\nname = "sums"\n'


def data_of(card: str) -> dict[str, Any]:
    """The metadata, as the hub reads them."""
    return vars(ModelCard(card).data)


def newest(home: Home) -> VersionRow:
    with opened(home) as reader:
        return reader.versions()[0]


@pytest.fixture
def task(filling: Filling, home: Home) -> int:
    """A finished task of two steps, with a file of its last version."""
    return with_silent_adapter(filling, home)


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("|")]


def test_the_card_has_what_the_store_knows(task: int, filling: Filling, home: Home, tmp_path: Path) -> None:
    filling.execute("UPDATE tasks SET source = ? WHERE id = ?", SOURCE, task)
    filling.execute("UPDATE steps SET environment_version = '9f2c41aa'")
    export(home, newest(home), tmp_path / "my-sums")
    text = (tmp_path / "my-sums" / "README.md").read_text("utf-8")
    assert {key: value for key, value in data_of(text).items() if value} == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["marlaas", "lora", "dr-grpo", "reinforcement-learning"],
    }
    facts = dict(row for row in table(text, "Training")[2:])
    assert facts["Environment"] == "arithmetic" and facts["The environment's version"] == "9f2c41aa"
    assert (facts["Rank"], facts["Loss"]) == ("16", r"dr\_grpo") and facts["Version"].startswith("2, of")
    assert facts["The base's fingerprint"] == load_base("tiny").fingerprint and facts["Base model"] == "tiny"
    assert [row[0] for row in table(text, "Reward by step")] == ["Step", "--:", "1", "2"]
    assert f"```toml\n{SOURCE}\n```" in text
    assert "PeftModel.from_pretrained(model, 'my-sums')" in text and "vllm serve tiny --enable-lora" in text
    assert str(tmp_path) not in text, "a card has no paths of this machine"
    export(home, newest(home), tmp_path / "whole", merge=True)
    text = (tmp_path / "whole" / "README.md").read_text("utf-8")
    assert 'library_name: "transformers"' in text and "vllm serve whole --served-model-name whole" in text


GAINS = (0.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0)
"""Rewards of four prompts, before training and after ten steps: a mean gain of 0.25, of a standard deviation of 0.5."""


def test_scores_before_and_after_have_their_interval(filling: Filling, home: Home) -> None:
    task = filling.task(made=30)
    for step, rewards in zip((0, 10), GAINS, strict=True):
        for prompt, reward in enumerate(rewards):
            filling.insert(
                "groups",
                **dict(policy=1, split="eval", number=prompt, instance=prompt, version=step, environment_version="e1"),
                **dict(state="complete", step=step, created=0.0, rewards=json.dumps([{"agent": reward}])),
            )
    columns = "policy, version, environment_version, n, prompts, metrics, created, stderr, floor"
    for step in (0, 10):
        filling.execute(
            f"INSERT INTO evals (step, suite, series, score, {columns}) SELECT step, 'hard', 's', score / 2, {columns}"
            " FROM evals WHERE policy = 1 AND suite = '' AND step = ?",
            step,
        )
    filling.execute("UPDATE evals SET score = 0.9 WHERE step = 20 AND suite = ''")
    with opened(home) as reader:
        version = next(each for each in reader.versions(task) if each.number == 10)
        text = readme(reader, version, Exported(Path("out"), Path("tiny"), 16), "", "f")
        scores = {(row.suite, row.step): row.score for row in reader.evals(task)}
    header, _, held_out, suite = table(text, "Scores")
    assert header == ["Measured on", "Before training", "This version", "Difference", "Best"]
    assert held_out[0] == "held-out" and held_out[1].startswith(f"{scores['', 0]:.2f} ± 0.03 (64 prompts")
    assert held_out[2].startswith(f"{scores['', 10]:.2f} ± 0.03") and held_out[4] == "0.90 at step 20"
    half = 3.1824463 * 0.5 / 2  # Student's t with 3 degrees of freedom
    assert held_out[3] == f"+0.250 ({0.25 - half:+.3f} to {0.25 + half:+.3f})"
    assert suite[0] == "hard" and suite[1].startswith(f"{scores['hard', 0]:.2f} ± ")
    curve = table(text, "Reward by step")
    assert curve[0] == ["Step", "Reward", "Lowest", "Highest"] and [row[0] for row in curve[2:]] == [
        str(step) for step in range(1, 11)
    ]


def test_a_long_curve_is_thinned(filling: Filling, home: Home) -> None:
    filling.task(made=200, trajectories=0)
    with opened(home) as reader:
        text = readme(reader, reader.versions()[0], Exported(Path("out"), Path("tiny"), 16), "", "f")
    steps = [int(row[0]) for row in table(text, "Reward by step")[2:]]
    assert steps == [1, *range(10, 201, 10)]


def test_whatever_others_wrote_is_text(filling: Filling, home: Home) -> None:
    filling.task(HOSTILE, "sums\n# \x1b[31mHacked | x\n---\nbase_model: evil", HOSTILE, made=3)
    with opened(home) as reader:
        text = readme(reader, reader.versions()[0], Exported(Path("out"), Path("tiny"), 16), "", "f")
    assert "\x1b" not in text and "\u202e" not in text
    assert [row for row in text.splitlines() if row.startswith("# ")] == [
        r"# sums \# Hacked \| x --- base\_model: evil"
    ]
    assert not data_of(text)["base_model"]


@pytest.mark.parametrize(
    ("config", "merged", "tags"),
    [
        ({"kind": "sft", "train": {"loss": "sft"}}, False, ["sft"]),
        ({"kind": "dpo", "train": {"loss": "dpo"}}, True, ["dpo"]),
        ({"train": {"loss": "gspo"}}, False, ["gspo", "reinforcement-learning"]),
        ({"train": {"loss": "distill"}}, False, ["distill"]),
    ],
)
def test_the_hub_can_sort_it(config: dict[str, Any], merged: bool, tags: list[str]) -> None:
    data = data_of(metadata(config, "org/model@v2", merged))
    assert data["tags"] == ["marlaas", "lora", *tags] and data["base_model"] == "org/model"
    assert data["base_model_relation"] == ("finetune" if merged else "adapter")
    assert data["library_name"] == ("transformers" if merged else "peft")


# The hub

OF_THE_CLIENT = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHub]:
    with small_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub


@OF_THE_CLIENT
def test_a_folder_is_pushed_without_paths_of_this_machine(
    task: int, home: Home, hub: SmallHub, marlaas: Commander, tmp_path: Path
) -> None:
    said = marlaas("adapters", "push", f"{task}@2", "me/sums", "--private", "--gguf")
    assert (said.code, said.out.strip()) == (0, f"{hub.address}/me/sums/commit/{1:040x}"), said.err
    files = hub.repositories["me/sums"]
    assert set(files) == {"README.md", "adapter_config.json", "adapter_model.safetensors", "adapter.gguf"}
    assert hub.private == {"me/sums"} and hub.messages == ["Version 2 of sums"]
    export(home, newest(home), tmp_path / "here")
    assert files["adapter_model.safetensors"] == (tmp_path / "here" / "adapter_model.safetensors").read_bytes()
    assert b"PeftModel.from_pretrained(model, 'me/sums')" in files["README.md"]
    assert not any(str(home.root).encode() in content for content in files.values())


@OF_THE_CLIENT
def test_what_is_there_is_updated_by_a_commit(task: int, home: Home, hub: SmallHub, marlaas: Commander) -> None:
    hub.repositories["me/sums"] = {"notes.txt": b"mine", "README.md": b"old"}
    assert marlaas("adapters", "push", f"{task}@2", "me/sums").code == 0
    assert {"notes.txt", "adapter_config.json"} <= set(hub.repositories["me/sums"])
    said = marlaas("adapters", "push", f"{task}@2", "me/sums", "--merge", "--json")
    assert said.json["commit"].endswith(f"{2:040x}") and said.json["version"]["number"] == 2
    files = hub.repositories["me/sums"]
    assert {"notes.txt", "model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(files)
    assert not {"adapter_config.json", "adapter_model.safetensors"} & set(files), "transformers would load these"
    assert b"'me/sums'" in files["README.md"] and b'library_name: "transformers"' in files["README.md"]


@OF_THE_CLIENT
def test_the_hub_knows_the_base_by_its_name(
    task: int, home: Home, hub: SmallHub, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    HubCache(tmp_path / "cache").add("org/model")
    home.create().config.write_text('base = "org/model"\n')
    assert marlaas("adapters", "push", f"{task}@2", "me/sums").code == 0
    files = hub.repositories["me/sums"]
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "org/model"
    assert data_of(files["README.md"].decode())["base_model"] == "org/model"
    assert b"vllm serve org/model --enable-lora" in files["README.md"]


@OF_THE_CLIENT
def test_each_refusal_is_a_sentence(
    task: int, home: Home, hub: SmallHub, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str, repository: str = "me/sums") -> None:
        said = marlaas("adapters", "push", f"{task}@2", repository)
        assert said.code != 0 and words in said.err and "Traceback" not in said.err and not said.out, said.err
        assert not list(home.root.glob(".push*")), "nothing is left"

    refused("cannot be a repository", "a/b/c")
    refused("cannot be a repository", "me/sums@v2")
    for part in ("/repos/create", "/commit/", ".git/info/lfs"):
        hub.refuses = part
        refused("Your token may not write to me/sums: You don't have the rights")
    hub.refuses = ""
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    refused("The Hugging Face hub does not know your token.")
    monkeypatch.delenv("HF_TOKEN")
    refused("wants your token, and there is none.\n  Set HF_TOKEN, or run `hf auth login`.")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    refused("The push was cut: ")
