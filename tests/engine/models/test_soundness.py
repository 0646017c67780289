"""What is wrong with a folder is said in one sentence before a weight is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.numpy import save_file

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import Weights, check_base, parameters
from tools.random_base.families import FAMILIES
from tools.random_base.make import make_base

from ...examples import examples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped base, to be damaged."""
    return Path(shutil.copytree(TINY_BASE, tmp_path / "base"))


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def widened(folder: Path) -> dict[str, Any]:
    """The shipped base's tensors as float32."""
    weights = Weights([folder / "model.safetensors"])
    return {name: weights.load(name) for name in weights}


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _slow_tokenizer(folder: Path) -> None:
    _no_tokenizer(folder)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text("")


def _bad_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": ')


def _other_size(folder: Path) -> None:
    change(folder / "config.json", vocab_size=7)


def _large_token(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"].append(dict(raw["added_tokens"][0], id=9000, content="<|far|>"))
    (folder / "tokenizer.json").write_text(json.dumps(raw))


def _other_tokenizer(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] < 200]
    raw["model"]["vocab"] = {word: number for word, number in raw["model"]["vocab"].items() if number < 200}
    raw["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(raw))


def _unknown_end(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[1, 287])


def _fewer_layers(folder: Path) -> None:
    change(folder / "config.json", num_hidden_layers=3)


def _no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def _bad_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}\n\n{{ m['content' }}\n{% endfor %}")


def _no_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xff")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, r"model\.safetensors: the weights are cut short: \d+ bytes of \d+\. Copy"),
        (_empty, r"model\.safetensors: the weights cannot be read"),
        (_no_tokenizer, r"has no tokenizer\.json\. Copy it"),
        (_slow_tokenizer, r"Make one from vocab\.json and merges\.txt: python -c .*AutoTokenizer.*save_pretrained"),
        (_bad_tokenizer, r"tokenizer\.json: is no tokenizer"),
        (_other_size, r"has \d+ rows, but its config\.json says vocab_size = 7"),
        (_large_token, r"knows the token 9000, but the embedding has \d+ rows"),
        (_other_tokenizer, r"it knows \d+ tokens, but the embedding has 288 rows"),
        (_unknown_end, r"generation_config\.json: ends texts with the token 287, which the tokenizer .* does not know"),
        (_fewer_layers, r"have 4 layers, but its config\.json says num_hidden_layers = 3"),
        (_no_template, "has no chat template"),
        (_bad_template, r"does not compile: .*line 3"),
        (_no_text, r"chat_template\.jinja"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, damage: Callable[[Path], None], words: str) -> None:
    check_base(load_base(folder))
    damage(folder)
    with pytest.raises(BaseModelError, match=words) as caught:
        check_base(load_base(folder))
    assert "\n" not in str(caught.value)


def test_parameters_are_counted_from_the_files(folder: Path) -> None:
    tensors = widened(folder)
    count = sum(tensor.size for tensor in tensors.values())
    assert parameters(load_base(folder)) == count
    head = {"lm_head.weight": np.zeros_like(tensors["model.embed_tokens.weight"])}
    save_file(tensors | head, folder / "model.safetensors")
    for tied, more in ((True, 0), (False, head["lm_head.weight"].size)):
        change(folder / "config.json", tie_word_embeddings=tied)
        assert parameters(load_base(folder)) == count + more


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


@pytest.mark.parametrize("key", ["shape", "data_offsets"])
@pytest.mark.parametrize("value", [[-1, 2], ["a", 2], [None], [[1], 2], [1.5, 2]])
def test_a_header_of_nonsense(folder: Path, key: str, value: list[object]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"][key] = value
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(BaseModelError, match=r"model\.safetensors"):
        check_base(load_base(folder))
