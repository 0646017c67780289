"""Products with matrices in bfloat16: as exact as they say, and with repeatable bits where they promise it."""

from collections.abc import Iterator

import pytest
import torch

from marlaas.engine.samplers.torch import blocks
from marlaas.engine.samplers.torch.blocks import CHUNK, ROWS, HalfHead, HalfMatrix

INPUTS, OUTPUTS = 300, 200


@pytest.fixture(params=["packed", "widened"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where oneDNN multiplies bfloat16, and where it cannot."""
    if request.param == "widened":
        monkeypatch.setattr(blocks, "packs", lambda: False)
    elif not blocks.packs():
        pytest.skip("oneDNN does not multiply bfloat16 here")
    yield


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("rows", [1, 8, 64, 100])
@pytest.mark.parametrize("alike", [True, False])
def test_a_product_has_float32_sums(rows: int, alike: bool) -> None:
    x, weight = drawn(rows, INPUTS), drawn(OUTPUTS, INPUTS, seed=1)
    exact = x.double() @ weight.double().T
    found = HalfMatrix(weight.float()).times(x, alike)
    assert found.dtype == torch.float32 and found.shape == (rows, OUTPUTS)
    # half of the last of 8 bits, and for small results float32 sums of terms that cancel
    assert ((found - exact).abs() <= 2.0**-8 * exact.abs() + 1e-4).all()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("rows", [1, 8, 100])
@pytest.mark.parametrize("alike", [True, False])
def test_logits_are_not_rounded_to_bfloat16(rows: int, alike: bool) -> None:
    x, weight = drawn(rows, 64), drawn(CHUNK + 500, 64, seed=1)
    exact = x.double() @ weight.double().T
    found = HalfHead(weight).logits(x, alike)
    assert found.dtype == torch.float32 and found.shape == exact.shape
    # logits of up to 40, of which bfloat16 alone would lose 0.1
    assert (found - exact).abs().max() < 1e-3


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("outputs", "inputs"), [(9728, 896), (896, 4864), (300, 100)])
def test_rows_alike_do_not_depend_on_other_rows(outputs: int, inputs: int) -> None:
    """Of Qwen2.5-0.5B's shape: with AMX, calls of other sizes give other bits."""
    matrix, x = HalfMatrix(drawn(outputs, inputs)), drawn(150, inputs, seed=1)
    whole = matrix.times(x, alike=True)
    for rows in (1, 2, 8, 31, 64, 65, 128):
        for begin in (0, 22):
            part = slice(begin, begin + rows)
            assert torch.equal(matrix.times(x[part], alike=True), whole[part])
    order = torch.randperm(150, generator=torch.Generator().manual_seed(2))
    assert torch.equal(matrix.times(x[order], alike=True), whole[order])


@pytest.mark.usefixtures("each_way")
def test_logits_alike_do_not_depend_on_other_rows() -> None:
    head, x = HalfHead(drawn(CHUNK + 500, 128)), drawn(150, 128, seed=1)
    whole = head.logits(x, alike=True).clone()
    for rows in (1, 8, 64, 65):
        assert torch.equal(head.logits(x[40 : 40 + rows], alike=True), whole[40 : 40 + rows])


def test_the_rows_of_a_call_are_whole_tiles() -> None:
    from marlaas.engine.samplers.torch.cache import TILE

    assert ROWS % TILE == 0
