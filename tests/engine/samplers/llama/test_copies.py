"""A prompt is copied to others of its group with the same bits."""

from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching.context import Logits
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import base_file, open_base

LENGTH = 512


def opened(base: BaseModel, folder: Path, exact: bool = True) -> LlamaContext:
    return open_base(base_file(base, folder / "cache"), 6, LENGTH, exact=exact).context


def fill(context: LlamaContext, sequence: int, tokens: int, first: int = 0) -> None:
    row = np.arange(tokens, dtype=np.int32)
    context.decode((row * 3 + first) % 50, row, row * 0 + sequence, (row >= tokens - 2).astype(np.int8))


def step(context: LlamaContext, *sequences: int) -> Logits:
    ids = np.array(sequences, np.int32)
    return context.decode(ids * 0 + 5, context.held[ids].copy(), ids, np.ones(len(ids), np.int8)).copy()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("tokens", [2, 30, 200, 256, 300, LENGTH - 2])
def test_copies_go_on_with_the_bits_of_their_source(base: BaseModel, tmp_path: Path, tokens: int, exact: bool) -> None:
    context = opened(base, tmp_path, exact)
    fill(context, 0, tokens)
    for target in (1, 2, 3):
        context.copy(0, [target], tokens)
    said = step(context, 0, 1, 2, 3)
    assert len({each.tobytes() for each in said}) == 1
    context.close()


def test_a_beginning_is_copied_where_more_is_held(base: BaseModel, tmp_path: Path) -> None:
    context = opened(base, tmp_path)
    fill(context, 0, 40)
    context.copy(0, [1], 30)
    fill(context, 2, 30)
    fill(context, 3, 30)
    assert context.held[1] == 30
    assert step(context, 1, 2)[0].tobytes() == step(context, 2, 3)[1].tobytes()
    context.close()


def test_what_a_source_held_before_is_not_copied(base: BaseModel, tmp_path: Path) -> None:
    """Between two copies the source is emptied, filled with other tokens, or goes on."""
    context = opened(base, tmp_path)
    fill(context, 0, 30)
    context.copy(0, [1], 30)
    context.cut(0, 0)
    fill(context, 0, 30, first=7)
    context.copy(0, [2], 30)
    context.cut(0, 20)
    context.copy(0, [3], 20)
    assert context.held[1:4].tolist() == [30, 30, 20]
    first, second = step(context, 1, 2)
    assert first.tobytes() != second.tobytes()
    fill(context, 4, 30, first=7)
    fill(context, 5, 30, first=7)
    context.cut(2, 30)
    assert step(context, 4, 5)[0].tobytes() == step(context, 2, 3)[0].tobytes()
    context.close()


@pytest.mark.parametrize("tokens", [40, LENGTH - 2])
def test_a_copy_of_a_copy_needs_no_call_between(base: BaseModel, tmp_path: Path, tokens: int) -> None:
    """A conversation is kept, and goes on from there in its old place: at any length."""
    context = opened(base, tmp_path)
    fill(context, 1, 30)
    fill(context, 0, tokens)
    context.copy(0, [3], 30)
    context.cut(0, 0)
    context.copy(3, [0], 30)
    one, other = step(context, 0, 1)
    np.testing.assert_allclose(one, other, atol=1e-3)  # prompts of another length are other products
    context.close()
