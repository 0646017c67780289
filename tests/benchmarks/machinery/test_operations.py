"""Products are counted, in place or not; what adds nothing up is not."""

import pytest
import torch

from benchmarks.machinery.operations import operations
from marlaas.engine.base.kernels import add_product, product


def test_products_are_counted_wherever_their_result_goes() -> None:
    left, right, sums = torch.randn(64, 32), torch.randn(32, 16), torch.zeros(64, 16)
    one = 2 * 64 * 32 * 16
    assert operations(lambda: torch.mm(left, right)) == one
    assert operations(lambda: sums.addmm_(left, right, alpha=2.0)) == one
    assert operations(lambda: torch.mm(left, right, out=sums)) == one
    assert operations(lambda: torch.bmm(left[None], right[None])) == one
    assert operations(lambda: left.exp_()) == 0


@pytest.mark.usefixtures("each_library")
def test_products_with_the_base_are_counted_with_each_library() -> None:
    left, right, sums = torch.randn(64, 32), torch.randn(32, 16), torch.zeros(64, 16)
    one = 2 * 64 * 32 * 16
    assert operations(lambda: product(left, right, torch.randn(16))) == one
    assert operations(lambda: add_product(sums, left, right)) == one
