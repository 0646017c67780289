"""Products with factors in bfloat16 round what they say, and the switch for them is used where it does so."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from marlaas.engine.models import kernels
from marlaas.engine.models.kernels import add_bfloat16_product, bfloat16_product, widened_product

SHAPES = [(96, 128, 80), (512, 160, 480), (1, 33, 7), (0, 16, 5)]


@pytest.fixture
def asked_anew() -> Iterator[None]:
    kernels._widens_right.cache_clear()
    yield
    kernels._widens_right.cache_clear()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def switch() -> str:
    found: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_a_product_of_halves_rounds_its_result_alone(rows: int, inner: int, columns: int) -> None:
    left, right = draw(rows, inner), draw(inner, columns, seed=1)
    exact = left.double() @ right.double()
    for b in (right, right.T.contiguous().T):
        found = bfloat16_product(left, b)
        assert found.dtype == torch.float32 and torch.equal(found, found.bfloat16().float())
        # half of the last of bfloat16's 8 bits, twice where a float32 sum lies close to the middle of two of its values
        torch.testing.assert_close(found, exact.float(), rtol=2**-8, atol=1e-4)
        sums = torch.full_like(found, 1000.0)
        add_bfloat16_product(sums, left, b, -0.5)
        torch.testing.assert_close(sums, 1000.0 - found / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("widened", ["none", "left", "right", "both"])
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_sums_of_halves_stay_in_float32(rows: int, inner: int, columns: int, widened: str) -> None:
    left, right = draw(rows, inner), draw(inner, columns, seed=1)
    exact = (left.double() @ right.double()).float()
    a = left.float() if widened in ("left", "both") else left
    b = right.float() if widened in ("right", "both") else right
    before, room = switch(), torch.full((rows, columns), torch.nan)
    for found in (widened_product(a, b), widened_product(a, b.T.contiguous().T), widened_product(a, b, room=room)):
        # sums of up to 160 products of about 1 are off by 1e-5 in float32; rounded to bfloat16 they would be by 0.1
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-4)
    assert found is room and switch() == before


def test_factors_of_float32_are_rounded_at_most() -> None:
    left, right = draw(64, 256).float() * 1.001, draw(256, 64, seed=1).float() * 1.001
    exact, found = left.double() @ right.double(), widened_product(left, right)
    # two factors are off by 2^-9 of themselves at most, which their sums hide: a product's norm is off by less
    assert (found - exact).norm() < 2**-8 * exact.norm()


@pytest.mark.processes
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
def test_without_the_instructions_nothing_is_rounded() -> None:
    text = (
        "import torch; from marlaas.engine.models.kernels import widened_product as product\n"
        "a, b = torch.ones(64, 64) / 3, torch.ones(64, 64) / 7\n"
        "print(bool((product(a, b) - a @ b).abs().max() < 1e-6))"
    )
    older = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", text]
    done = subprocess.run(command, env=os.environ | older, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.usefixtures("asked_anew")
def test_nothing_is_rounded_without_room_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "address_space", lambda: 1 << 30)
    monkeypatch.setattr(kernels, "_rounding_factors", None)  # of no use then
    left, right = draw(64, 64), draw(64, 64, seed=1)
    torch.testing.assert_close(widened_product(left, right), left.float() @ right.float())


@pytest.mark.usefixtures("asked_anew")
def test_sums_that_are_rounded_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right, mm = draw(64, 64).float(), draw(64, 64, seed=1).float(), torch.mm

    def rounding(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        found = mm(a, b)
        return found.bfloat16().float() if switch() == "bf16" else found

    monkeypatch.setattr(torch, "mm", rounding)
    torch.testing.assert_close(widened_product(left, right), mm(left, right))


@pytest.mark.usefixtures("asked_anew")
def test_the_switch_goes_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switch()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        widened_product(draw(3, 4), draw(5, 6))
    assert switch() == before
