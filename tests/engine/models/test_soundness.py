"""A base's folder: what is read, what is wrong with it in one sentence before weights are loaded, files made of it."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.numpy import save_file
from transformers import AutoTokenizer

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.config import read_config
from marlaas.engine.models.find import fingerprint, load_base
from marlaas.engine.models.gguf import ensure, forget_others
from marlaas.engine.models.weights import Weights, check_base, count_parameters, parameters, token_ids
from tests.engine.rollout.random_base import CONFIG, write_base
from tools.random_base.families import FAMILIES
from tools.random_base.make import make_base

from ...examples import examples


def test_the_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    one, again, other = (write_base(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    (tmp_path / "b" / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 5.0}))
    assert load_base(tmp_path / "b").fingerprint != one.fingerprint


def test_large_files_are_told_apart_by_size_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.models.find.WHOLE", 10)
    file = tmp_path / "weights"
    prints = []
    for data in (b"a" * (3 << 20), b"a" * (3 << 20) + b"a", b"b" + b"a" * (3 << 20), b"a" * (3 << 20) + b"b"):
        file.write_bytes(data)
        prints.append(fingerprint([file]))
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "of the unknown type 'spiral'"),
    ],
)
def test_what_would_end_a_worker_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(BaseModelError, match=words):
        read_config(tmp_path / "config.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped base, to be damaged."""
    return Path(shutil.copytree(TINY_BASE, tmp_path / "base"))


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def tokenizer(folder: Path, act: Callable[[dict[str, Any]], None]) -> None:
    """Change what ``tokenizer.json`` holds."""
    raw = json.loads((folder / "tokenizer.json").read_text())
    act(raw)
    (folder / "tokenizer.json").write_text(json.dumps(raw))


def _large_token(raw: dict[str, Any]) -> None:
    raw["added_tokens"].append(dict(raw["added_tokens"][0], id=9000, content="<|far|>"))


def _other_tokenizer(raw: dict[str, Any]) -> None:
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] < 200]
    raw["model"]["vocab"] = {word: number for word, number in raw["model"]["vocab"].items() if number < 200}
    raw["model"]["merges"] = []


def _slow_tokenizer(folder: Path) -> None:
    """Byte-level BPE as vocab.json and merges.txt."""
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")


WEIGHTS, TEMPLATE = "model.safetensors", "chat_template.jinja"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1]),
            r"model\.safetensors: the weights are cut short: \d+ bytes of \d+\. Copy",
        ),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), r"model\.safetensors: the weights cannot be read"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"has no tokenizer\.json\. Copy it"),
        (_slow_tokenizer, r"Make one from vocab\.json and merges\.txt: python -c .*AutoTokenizer.*save_pretrained"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model": '), r"tokenizer\.json: is no tokenizer"),
        (
            lambda folder: change(folder / "config.json", vocab_size=7),
            r"has \d+ rows, but its config\.json says vocab_size = 7",
        ),
        (lambda folder: tokenizer(folder, _large_token), r"knows 9,001 tokens, but the embedding has \d+ rows"),
        (lambda folder: tokenizer(folder, _other_tokenizer), r"it knows \d+ tokens, but the embedding has 288 rows"),
        (
            lambda folder: change(folder / "generation_config.json", eos_token_id=[1, 287]),
            r"generation_config\.json: ends texts with the token 287, which the tokenizer .* does not know",
        ),
        (
            lambda folder: change(folder / "config.json", num_hidden_layers=3),
            r"have 4 layers, but its config\.json says num_hidden_layers = 3",
        ),
        (lambda folder: (folder / TEMPLATE).unlink(), "has no chat template"),
        (
            lambda folder: (folder / TEMPLATE).write_text("{% for m in messages %}\n\n{{ m['content' }}\n{% endfor %}"),
            r"does not compile: .*line 3",
        ),
        (lambda folder: (folder / TEMPLATE).write_bytes(b"\xff\xfe\xff"), r"chat_template\.jinja"),
    ],
)
def test_what_is_wrong_is_one_sentence(folder: Path, damage: Callable[[Path], object], words: str) -> None:
    check_base(load_base(folder))
    damage(folder)
    with pytest.raises(BaseModelError, match=words) as caught:
        check_base(load_base(folder))
    assert "\n" not in str(caught.value)


def test_the_advice_for_a_folder_without_tokenizer_works(tmp_path: Path) -> None:
    """What transformers makes of vocab.json and merges.txt is a tokenizer."""
    _slow_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(BaseModelError, match=r"vocab\.json and merges\.txt"):
        token_ids(tmp_path)
    AutoTokenizer.from_pretrained(str(tmp_path)).save_pretrained(str(tmp_path))
    assert max(token_ids(tmp_path)) >= 3


def test_parameters_are_counted_from_the_files(folder: Path) -> None:
    weights = Weights([folder / WEIGHTS])
    tensors = {name: weights.load(name) for name in weights}
    count = sum(tensor.size for tensor in tensors.values())
    assert parameters(load_base(folder)) == count_parameters(folder) == count
    head = {"lm_head.weight": np.zeros_like(tensors["model.embed_tokens.weight"])}
    save_file(tensors | head, folder / WEIGHTS)
    for tied, more in ((True, 0), (False, head["lm_head.weight"].size)):
        change(folder / "config.json", tie_word_embeddings=tied)
        assert parameters(load_base(folder)) == count_parameters(folder) == count + more


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_as_it_is_published_is_sound(tmp_path: Path, family: str) -> None:
    """Embeddings have more rows than the tokenizer has tokens, in two shards."""
    base = make_base(tmp_path / "base", family, "mini", rows=2048)
    check_base(base)
    (tmp_path / "base" / base.weight_files[1].name).unlink()
    with pytest.raises(BaseModelError, match=r"lacks model-00002-of-00002\.safetensors"):
        check_base(base)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    file=st.sampled_from(["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"]),
    at=st.integers(0, 1500),
    data=st.binary(min_size=1, max_size=8) | st.sampled_from([b"-1", b'"x"', b"null", b"[]", b"{}", b"1e99"]),
)
def test_no_damage_is_too_strange(folder: Path, file: str, at: int, data: bytes) -> None:
    """Whatever stands in a file, there is a sentence or a sound base."""
    good = (folder / file).read_bytes()
    (folder / file).write_bytes(good[:at] + data + good[at + len(data) :])
    try:
        check_base(load_base(folder))
    except BaseModelError as error:
        assert error.message
    finally:
        (folder / file).write_bytes(good)


def test_parameters_are_counted_without_numpy() -> None:
    code = (
        "import sys; from marlaas.engine.models.weights import count_parameters as c; c('tiny');"
        "print('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


GOOD = bytes(range(256)) * 16


def write(path: Path) -> None:
    path.write_bytes(GOOD)


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.gguf"
    assert ensure(path, 1, write) == path and path.read_bytes() == GOOD
    before = path.stat().st_mtime_ns
    ensure(path, 1, lambda _: pytest.fail("written again"))
    assert path.stat().st_mtime_ns == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.gguf"]


def test_a_disk_that_refuses_is_named_and_nothing_stays(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_bytes(GOOD[:100])
        raise OSError(28, "No space left on device")

    with pytest.raises(BaseModelError, match=r"a\.gguf: .* not be written: No space left on device\. Free some"):
        ensure(tmp_path / "a.gguf", 1, half)
    assert list(tmp_path.iterdir()) == []

    def part(path: Path) -> None:
        with open(path, "wb") as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            np.frombuffer(GOOD, np.uint8).tofile(file)

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(BaseModelError, match=r"a\.gguf: .* not be written: the disk took a part of it only"):
            ensure(tmp_path / "a.gguf", 1, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BaseModelError, match=r"takes 1e\+09 GB to make, and .* GB are free there"):
        ensure(tmp_path / "a.gguf", 10**18, write)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("where a folder should be")
    with pytest.raises(BaseModelError, match="could not be written"):
        ensure(tmp_path / "file" / "a.gguf", 1, write)


def test_two_at_once_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    inside = threading.Barrier(2, timeout=20)
    script = "import sys; from pathlib import Path; from marlaas.engine.models.gguf import ensure\n"
    script += f"ensure(Path({str(path)!r}), 1, lambda p: p.write_bytes(bytes(range(256)) * 16) and None)"

    def slowly(target: Path) -> None:
        target.write_bytes(GOOD[:7])
        inside.wait()  # until the other has finished
        target.write_bytes(GOOD)

    def other() -> None:
        subprocess.run([sys.executable, "-P", "-c", script], check=True)
        assert path.read_bytes() == GOOD
        inside.wait()

    thread = threading.Thread(target=other)
    thread.start()
    assert ensure(path, 1, slowly).read_bytes() == GOOD
    thread.join()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.gguf"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = [tmp_path / f".a.gguf.{ended.pid}", tmp_path / f".a.gguf.{ended.pid}.f32"]
    other = [tmp_path / ".a.gguf.1", tmp_path / ".b.gguf.notes"]
    for each in left + other:
        each.write_bytes(b"half")
    ensure(tmp_path / "a.gguf", 1, write)
    assert [each.exists() for each in left + other] == [False, False, True, True]


def test_files_of_other_bases_are_forgotten_and_nothing_else(tmp_path: Path) -> None:
    mine, other = (ensure(tmp_path / f"{name}-f32.gguf", 1, write) for name in ("aaaa", "bbbb"))
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "own.gguf").write_bytes(b"a person's")
    assert forget_others(tmp_path, "aaaa") == len(GOOD)
    assert mine.exists() and not other.exists()
    assert (tmp_path / "notes.json").exists() and (tmp_path / "own.gguf").exists()
    assert forget_others(tmp_path, "aaaa") == 0
    assert forget_others(tmp_path / "gone", "aaaa") == 0
