"""base list and use, the base of a task file, and adapters delete."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from marlaas.app.operations import commands
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.models.find import load_base
from marlaas.engine.store.queries.reader import Reader
from tests.engine.models.hub_cache import COMMIT, HubCache

from ...commanding import Commander, FakeEngine
from ...filling import Filling


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("MARLAAS_BASE", raising=False)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # LM Studio's models
    return HubCache(tmp_path / "hub")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A base that differs from the shipped one."""
    folder = Path(shutil.copytree(TINY_BASE, tmp_path / "my base"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    return folder


def base_of(home: Home) -> str:
    return str(tomllib.loads(home.config.read_text())["base"])


def bind(filling: Filling, base: str = "") -> None:
    """Write down that all tasks belong to a base: the shipped one unless said otherwise."""
    fingerprint = load_base("tiny").fingerprint
    filling.execute("UPDATE tasks SET base = ?", base or fingerprint)
    filling.insert("engines", pid=1, state="stopped", started=0.0, heartbeat=0.0, base="tiny", fingerprint=fingerprint)


def test_a_hostile_cached_model_is_named_and_hides_none(marlaas: Commander, home: Home, cache: HubCache) -> None:
    loops = "".join(f"{{% for a{n} in [1] %}}" for n in range(25)) + "{% endfor %}" * 25
    hostile = {
        "org/loops": ("chat_template.jinja", loops, "too many statically nested blocks"),
        "org/wide": ("chat_template.jinja", "{{ 'a' * 300000000 }}", "chat template refuses"),
        "org/deep": ("config.json", "[" * 100_000, "config.json: is no model configuration"),
        "org/odd": ("config.json", '{"model_type": "qwen3", "hidden_size": 1e999}', "config.json"),
        "org/words": ("tokenizer.json", "[" * 100_000, "tokenizer.json: is no tokenizer"),
    }
    for name, (file, text, _) in hostile.items():
        (cache.add(name) / file).unlink()
        (cache.entry(name) / "snapshots" / COMMIT / file).write_text(text)
    cache.add("org/sound")
    rows = {row["name"]: row for row in marlaas("base", "list", "--json").json}
    assert rows["org/sound"]["problem"] == "" and rows["tiny"]["problem"] == ""
    for name, (_, _, says) in hostile.items():
        assert says in rows[name]["problem"]


def test_list(marlaas: Commander, home: Home, cache: HubCache, other: Path) -> None:
    cache.add("org/model")
    (cache.add("org/cut") / "model.safetensors").unlink()
    home.create()
    home.config.write_text(f"base = {json.dumps(str(other))}\n")
    rows = {row["name"]: row for row in marlaas("base", "list", "--json").json}
    assert list(rows) == ["tiny", str(other), "org/cut", "org/model", "smollm2"]
    assert [row["used"] for row in rows.values()] == [False, True, False, False, False]
    whole, cut = rows["org/model"], rows["org/cut"]
    assert (whole["architecture"], whole["context"], whole["problem"]) == ("qwen3", 1024, "")
    assert 1.2e6 < whole["parameters"] < 1.4e6 and whole["size"] > 2 * whole["parameters"]
    assert "no *.safetensors weights" in cut["problem"] and "org/cut --download" in cut["hint"]
    said = marlaas("base", "list")
    assert said.code == 0 and "org/cut --download" in said.err and "1.3M" in said.out


def test_use(marlaas: Commander, home: Home, engine: FakeEngine, cache: HubCache, other: Path) -> None:
    said = marlaas("base", "use", str(other))
    assert said.code == 0 and base_of(home) == str(other) and "qwen3, 1.3M parameters" in said.out
    assert "was stopped" in said.err and engine.asked == ["stop"]
    assert "# tasks = 32" in home.config.read_text()
    cache.add("org/model")
    assert marlaas("base", "use", "org/model", "--json").json["fingerprint"] == load_base("tiny").fingerprint
    assert base_of(home) == "org/model" and not engine.living


def test_a_relative_folder_is_written_as_an_absolute_one(
    marlaas: Commander, home: Home, engine: FakeEngine, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(other.parent)
    assert marlaas("base", "use", other.name).code == 0
    assert base_of(home) == str(other)


def test_the_variable_that_goes_before_is_named(
    marlaas: Commander, engine: FakeEngine, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLAAS_BASE", "tiny")
    assert "MARLAAS_BASE is tiny and overrides" in marlaas("base", "use", str(other)).err


def test_what_cannot_be_used_changes_nothing(
    marlaas: Commander, home: Home, engine: FakeEngine, cache: HubCache, other: Path
) -> None:
    (other / "tokenizer.json").unlink()
    cache.add("org/cut")
    shutil.rmtree(cache.entry("org/cut") / "snapshots")
    for name, words in ((str(other), "has no tokenizer.json"), ("org/cut", "incomplete"), ("nowhere", "no base model")):
        said = marlaas("base", "use", name)
        assert said.code == 2 and words in said.err and said.out == ""
    assert not home.root.exists() and engine.asked == []


def test_a_template_that_holds_no_conversation_is_refused(
    marlaas: Commander, home: Home, engine: FakeEngine, other: Path
) -> None:
    for template, words in (("{{ raise_exception('no users') }}", "no users"), ("hello", "does not show what")):
        (other / "chat_template.jinja").write_text(template)
        said = marlaas("base", "use", str(other))
        assert said.code == 2 and words in said.err and said.out == ""
    assert not home.root.exists()


def test_an_architecture_without_a_gguf_is_said_to_need_one(
    marlaas: Commander, home: Home, engine: FakeEngine, other: Path
) -> None:
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "banana"}))
    said = marlaas("base", "use", str(other))
    assert said.code == 0 and "writes no GGUF for the architecture 'banana'" in said.err and "gguf = FILE" in said.err
    home.config.write_text(home.config.read_text().replace('# gguf = ""', 'gguf = "mine.gguf"'))
    assert "GGUF" not in marlaas("base", "use", str(other)).err


def test_download_wants_a_name_of_the_hub(marlaas: Commander, other: Path, cache: HubCache, home: Home) -> None:
    for name in (str(other), "tiny"):
        said = marlaas("base", "use", name, "--download")
        assert said.code == 2 and "is no name on the Hugging Face hub" in said.err
    cache.add("org/model")
    said = marlaas("base", "use", "org/model", "--download")
    assert said.code == 0 and "in the Hugging Face cache already" in said.err


@pytest.mark.parametrize("state", ["running", "paused", "submitted"])
def test_unfinished_tasks_hold_the_home_to_their_base(
    filling: Filling, marlaas: Commander, home: Home, engine: FakeEngine, other: Path, state: str
) -> None:
    filling.task(state=state)
    bind(filling)
    said = marlaas("base", "use", str(other))
    assert said.code == 2 and "the unfinished task 1 (physics-lab/two-digit sums) belongs to" in said.err
    assert "another base (tiny)" in said.err
    assert f"marlaas --home DIR base use '{other}'" in said.err and "marlaas cancel 1" in said.err
    assert engine.asked == [] and 'base = "tiny"' in home.config.read_text()
    assert marlaas("base", "use", "tiny").code == 0
    bind(filling, load_base(other).fingerprint)
    assert marlaas("base", "use", str(other)).code == 0


def test_adapters_hold_the_home_to_their_base(
    filling: Filling, marlaas: Commander, engine: FakeEngine, other: Path
) -> None:
    for _ in range(5):
        filling.task(state="done", made=3)
    bind(filling)
    said = marlaas("base", "use", str(other))
    assert said.code == 2 and "the adapters of tasks 1 (" in said.err and "and 2 more" in said.err
    assert "marlaas adapters export 1" in said.err and "marlaas adapters delete 1" in said.err
    filling.execute("UPDATE versions SET state = 'pruned'")
    assert marlaas("base", "use", str(other)).code == 0


def test_tasks_of_an_unknown_base_belong_to_the_one_before(
    filling: Filling, marlaas: Commander, engine: FakeEngine, other: Path
) -> None:
    filling.task(state="running")
    assert marlaas("base", "use", str(other)).code == 2
    assert marlaas("base", "use", "tiny").code == 0


def test_a_task_file_may_name_its_base(
    filling: Filling, marlaas: Commander, home: Home, engine: FakeEngine, other: Path, tmp_path: Path
) -> None:
    filling.environment()
    file = tmp_path / "task.toml"
    text = 'tenant = "a"\nname = "b"\nenvironment = "arithmetic"\n'
    file.write_text(text + f"base = {json.dumps(other.name)}\n")  # counts from the file's folder
    said = marlaas("submit", str(file))
    assert said.code == 2 and "is meant for the base" in said.err and "'tiny'" in said.err
    assert "--home DIR base use" in said.err and engine.asked == []
    assert marlaas("base", "use", str(other)).code == 0
    assert marlaas("submit", str(file)).code == 0
    file.write_text(text + 'base = "tiny"\n')
    assert marlaas("submit", str(file)).code == 2
    file.write_text(text + 'base = "/nowhere"\n')
    assert "no base model '/nowhere'" in marlaas("submit", str(file)).err
    assert marlaas("base", "use", "tiny").code == 2  # the task that was submitted belongs to the other


def test_a_task_belongs_to_the_base_that_the_engine_serves(
    filling: Filling, marlaas: Commander, home: Home, engine: FakeEngine, other: Path, tmp_path: Path
) -> None:
    """Not to one that was written into marlaas.toml meanwhile."""
    filling.environment()
    bind(filling)
    home.config.write_text(f"base = {json.dumps(str(other))}\n")
    (tmp_path / "task.toml").write_text('tenant = "a"\nname = "b"\nenvironment = "arithmetic"\nbase = "tiny"\n')
    assert marlaas("submit", str(tmp_path / "task.toml")).code == 0
    with Reader(home.database) as reader:
        assert [task.base for task in reader.bound_tasks()] == [load_base("tiny").fingerprint]


def test_adapters_delete(
    filling: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.task(name="sums", state="done", made=3)
    answers = iter(["", "", "A task that is running cannot."])
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: {sent[0]: next(answers)})
    said = marlaas("adapters", "delete", "sums")
    assert said.code == 0 and said.out.splitlines() == ["t1-v3-i1: 1 MB", "t1-v2-i1: 1 MB"]
    assert "Deleted 2 versions of task 1: 3 MB." in said.err
    said = marlaas("adapters", "delete", "1", "--version", "2", "--json")
    assert said.json == {"task": 1, "deleted": ["t1-v2-i1"], "bytes": 1_300_000}
    assert marlaas("adapters", "delete", "t1-v3-i1").code == 2
    for words in (("7",), ("1", "--version", "9"), ("1", "--version", "0")):
        assert marlaas("adapters", "delete", *words).code == 1
