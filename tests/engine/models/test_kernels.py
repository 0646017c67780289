"""One library multiplies for a process, is named once and can be forced; products in bfloat16 round what they say."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from marlaas.engine.devices.limits import ONEDNN as ONEDNN_SAYS
from marlaas.engine.errors import ConfigError
from marlaas.engine.models import kernels
from marlaas.engine.models.kernels import (
    VARIABLE,
    add_product,
    library,
    product,
    widened_product,
)

ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
SHAPES = [(96, 128, 80), (512, 160, 480), (1, 33, 7), (0, 16, 5)]


@pytest.fixture
def library_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    library.cache_clear()
    yield
    library.cache_clear()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_products_are_float32_in_every_order_of_memory(rows: int, inner: int, columns: int) -> None:
    left, right, bias = draw(rows, inner), draw(inner, columns, seed=1), draw(columns, seed=2)
    exact = (left.double() @ right.double()).float()
    wide = draw(rows, inner + 8, seed=3)
    wide[:, 3:-5] = left
    for a in (left, wide[:, 3:-5]):
        for b in (right, right.T.contiguous().T):
            # sums of up to 160 products of about 1 are off by 1e-5; bfloat16's would be by 0.1
            torch.testing.assert_close(product(a, b), exact, rtol=0, atol=1e-4)
            torch.testing.assert_close(product(a, b, bias), exact + bias, rtol=0, atol=1e-4)
            torch.testing.assert_close(product(a, b, room=draw(rows, columns)), exact, rtol=0, atol=1e-4)
            sums = draw(rows, columns, seed=4)
            add_product(sums, a, b)
            torch.testing.assert_close(sums, exact + draw(rows, columns, seed=4), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize("rows", [8, 32, 63, 64])
def test_a_rows_bits_do_not_depend_on_its_place(rows: int) -> None:
    """Episodes share calls, and repeat to the last bit."""
    left, row, right = draw(rows, 512), draw(1, 512, seed=1), draw(96, 512, seed=2).T
    results = set()
    for place in range(rows):
        placed = left.clone()
        placed[place] = row
        results.add(bytes(product(placed, right)[place].numpy()))
    assert len(results) == 1


def test_the_variable_says_which_library_multiplies(each_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    by_onednn = kernels.by_onednn

    def noted(*given: Tensor) -> Tensor:
        ran.append("onednn")
        return by_onednn(*given)

    monkeypatch.setattr(kernels, "by_onednn", noted)
    product(draw(2, 3), draw(3, 4))
    assert (library(), bool(ran)) == (each_library, each_library == "onednn")


@pytest.mark.usefixtures("library_asked")
@pytest.mark.parametrize(
    ("capability", "processor", "chosen"),
    [("AVX2", "AuthenticAMD", "mkl"), ("AVX512", "GenuineIntel", "mkl"), ("AVX512", "AuthenticAMD", "onednn")],
)
def test_unless_it_is_set_the_processor_decides(
    monkeypatch: pytest.MonkeyPatch, capability: str, processor: str, chosen: str
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"vendor_id : {processor}\n")
    assert library() == chosen


@pytest.mark.usefixtures("library_asked")
def test_a_library_that_rounds_or_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Tensor) -> Tensor:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: True)
    for broken in (refused, lambda left, right: (left.bfloat16() @ right.bfloat16()).float()):
        monkeypatch.setattr(kernels, "by_onednn", broken)
        library.cache_clear()
        assert library() == "mkl"
        library.cache_clear()
        with monkeypatch.context() as forced, pytest.raises(ConfigError, match=f"{VARIABLE} is onednn"):
            forced.setenv(VARIABLE, "onednn")
            library()
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ConfigError, match=f"{VARIABLE} is 'fast': there are mkl and onednn"):
        library()


LITTLE_ROOM = """
import logging, os, resource
from pathlib import Path
os.environ["MARLAAS_KERNELS"] = "onednn"
import torch
from marlaas.engine.models import kernels
from marlaas.engine.devices.limits import ran_out

def allow(extra):
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + extra if extra else resource.RLIM_INFINITY, resource.RLIM_INFINITY))

logging.basicConfig(format="%(message)s")
torch.set_num_threads(1)
left, right = torch.randn(9000, 64), torch.randn(64, 2048)
expected = [torch.mm(left[:rows], right) for rows in (8500, 8600)]
assert torch.allclose(kernels.product(left[:50], right), torch.mm(left[:50], right), atol=1e-4)

allow(100 << 20)
ran = kernels.by_onednn
kernels.by_onednn = None  # of no use with a limit
assert torch.equal(kernels.product(left[:8500], right), expected[0])

kernels.by_onednn, kernels.address_space = ran, lambda: None
allow(8500 * 2048 * 4 + (1 << 19))  # the result, and no room for the code
try:
    ran(left[:8500], right)
except RuntimeError as error:
    assert ran_out(error)
    print(error)
again = kernels.product(left[:8500], right)
allow(0)
assert torch.allclose(again, expected[0], atol=1e-4)
assert torch.allclose(kernels.product(left[:8600], right), expected[1], atol=1e-4)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.skipif(not ONEDNN, reason="PyTorch without oneDNN")
def test_onednn_is_not_used_without_room_for_its_code() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LITTLE_ROOM], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("with these instructions oneDNN needs no more room than there was")
    assert done.stdout.splitlines()[0] in ONEDNN_SAYS
    warning = "oneDNN has no memory for a product; from now on PyTorch's default library multiplies."
    assert done.stderr.splitlines() == [warning]


@pytest.fixture
def switch_asked() -> Iterator[None]:
    kernels._widens_right.cache_clear()
    yield
    kernels._widens_right.cache_clear()


def draw_halves(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed).bfloat16()


def switch() -> str:
    found: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("widened", ["none", "left", "right", "both"])
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_sums_of_halves_stay_in_float32(rows: int, inner: int, columns: int, widened: str) -> None:
    left, right = draw_halves(rows, inner), draw_halves(inner, columns, seed=1)
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
    left, right = draw_halves(64, 256).float() * 1.001, draw_halves(256, 64, seed=1).float() * 1.001
    exact, found = left.double() @ right.double(), widened_product(left, right)
    # two factors are off by 2^-9 of themselves at most, which their sums hide: a product's norm is off by less
    assert (found - exact).norm() < 2**-8 * exact.norm()
