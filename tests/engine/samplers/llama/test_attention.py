"""Exact attention is flash attention in float32; where it cannot be, it is exact without flash."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import FLASH
from marlaas.engine.samplers.batching.context import Logits
from marlaas.engine.samplers.llama import mixing
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.mixing import Ggml, OtherForm, Tensor, Unknown
from marlaas.engine.samplers.llama.model import BaseFile, base_file, open_base
from tools.random_base.make import make_base

PROMPT = 300
"""More than a block of 256 tokens."""
GAP = 1e-4
"""Between two orders of sums in float32; keys and values in float16 are off by 1e-3 and more."""


@pytest.fixture
def file(base: BaseModel, tmp_path: Path) -> BaseFile:
    return base_file(base, tmp_path / "cache")


def said(file: BaseFile, exact: bool = True, mixes: bool = False) -> Logits:
    """Logits after a prompt, and of four more tokens of it and of a short neighbour."""
    context = open_base(file, 4, 512, exact=exact, mixes=mixes).context
    found = logits(context)
    context.close()
    return found


def logits(context: LlamaContext) -> Logits:
    row = np.arange(PROMPT, dtype=np.int32)
    wanted = (row >= PROMPT - 2).astype(np.int8)
    found = [context.decode(row % 50, row, row * 0, wanted).copy()]
    found.append(context.decode(row[:3], row[:3], row[:3] * 0 + 1, wanted[-3:]).copy())
    pair = np.arange(2, dtype=np.int32)
    found += [context.decode(pair, context.held[:2].copy(), pair, pair * 0 + np.int8(1)).copy() for _ in range(4)]
    return np.concatenate(found)


@pytest.fixture
def without_flash(monkeypatch: pytest.MonkeyPatch, file: BaseFile) -> Iterator[Logits]:
    """The same from llama.cpp's own float32."""

    def unknown() -> Ggml:
        raise Unknown("Flash attention of ggml has another form.")

    with monkeypatch.context() as patch:
        patch.setattr(mixing, "ggml", unknown)
        found = said(file)
    yield found


@pytest.mark.parametrize("mixes", [False, True])
def test_flash_attention_is_as_exact_as_without(file: BaseFile, without_flash: Logits, mixes: bool) -> None:
    found = said(file, mixes=mixes)
    assert np.abs(found - without_flash).max() < GAP
    assert found.tobytes() != without_flash.tobytes()  # it is another way to compute it
    assert np.abs(said(file, exact=False) - without_flash).max() > 10 * GAP


def another_form(*_: object) -> None:
    raise OtherForm("llama.cpp computes attention in another form")


@pytest.mark.parametrize("family", ["qwen2.5", "llama3"])
def test_every_family_is_exact(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = base_file(make_base(tmp_path / "base", family, rows=1500), tmp_path / "cache")
    found = said(file)
    monkeypatch.setattr(mixing, "past_casts", another_form)
    assert np.abs(found - said(file)).max() < GAP


def test_every_graph_reads_floats(file: BaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs change with the rows of a call and with the blocks that are held; none computes a cast."""
    seen: list[set[int]] = []
    plain = mixing.past_casts

    def watched(ggml: Ggml, address: int) -> None:
        plain(ggml, address)
        tensor = Tensor.from_address(address)
        sources = [Tensor.from_address(each) for each in (tensor.right, tensor.others[0])]
        seen.append({source.type for source in sources} | {source.op == ggml.copies for source in sources})

    monkeypatch.setattr(mixing, "past_casts", watched)
    context = open_base(file, 4, 512, exact=True).context
    assert context._watch is not None and context._watch.floats
    seen.clear()
    logits(context)
    layers = file.names.config.layers
    assert len(seen) >= 6 * layers and all(each == {mixing.F32, False} for each in seen)
    context.close()


def test_another_form_is_left_to_llama(
    file: BaseFile, without_flash: Logits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mixing, "past_casts", another_form)
    assert said(file).tobytes() == without_flash.tobytes()
    assert "another form" in caplog.text


def test_what_is_not_held_any_more_changes_nothing(file: BaseFile) -> None:
    """Keys of a longer conversation stay behind those of the next one."""
    context = open_base(file, 4, 512, exact=True).context
    first = logits(context)
    for sequence in range(4):
        context.cut(sequence, 0)
    row = np.arange(400, dtype=np.int32)
    context.decode(row % 7, row, row * 0 + 1, (row > 397).astype(np.int8))
    context.cut(1, 0)
    assert logits(context).tobytes() == first.tobytes()
    context.close()


def test_long_sequences_are_read_in_blocks(file: BaseFile) -> None:
    """There products over whole blocks are faster than flash attention, which goes token by token."""
    for length, flash in ((FLASH, True), (FLASH + 256, False)):
        context = open_base(file, 2, length, exact=True).context
        assert (context._watch is not None) == flash
        context.close()
