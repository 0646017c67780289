"""Each hand-written backward against autograd, and the chunked head against the whole one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from marlaas.engine.base.arithmetic import (
    rms_norm,
    rms_norm_backward,
    rotate,
    swiglu,
    swiglu_backward,
)
from marlaas.engine.base.kernels import choose_float32_kernels
from marlaas.engine.training.decoder.head import token_scores, token_scores_backward


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_autograd(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (result,) = torch.autograd.grad(function(leaf), leaf, grad)
    return result


@pytest.mark.parametrize("shape", [(7, 12), (7, 3, 12)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight, grad = draw(*shape), draw(12, seed=1), draw(*shape, seed=2)
    result, unit, inverse = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(x, (12,), weight, 1e-6))
    expected = by_autograd(lambda x: torch.nn.functional.rms_norm(x, (12,), weight, 1e-6), x, grad)
    torch.testing.assert_close(rms_norm_backward(grad, unit, inverse, weight), expected)


def test_swiglu() -> None:
    x, grad = draw(7, 20), draw(7, 10, seed=1)
    result, opened = swiglu(x)

    def plain(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x[:, :10]) * x[:, 10:]

    torch.testing.assert_close(result, plain(x))
    torch.testing.assert_close(swiglu_backward(grad, x, opened), by_autograd(plain, x, grad))


def test_rotating_back_is_the_backward_of_rotating() -> None:
    x, grad, angles = draw(5, 3, 8), draw(5, 3, 8, seed=1), draw(5, 1, 4, seed=2)
    expected = by_autograd(lambda x: rotate_plainly(x, angles), x, grad)
    torch.testing.assert_close(rotate(x, angles.cos(), angles.sin()), rotate_plainly(x, angles))
    torch.testing.assert_close(rotate(grad, angles.cos(), -angles.sin()), expected)


def rotate_plainly(x: Tensor, angles: Tensor) -> Tensor:
    """As transformers writes it."""
    cosine, sine = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
    return x * cosine + torch.cat([-x[..., 4:], x[..., :4]], -1) * sine


@pytest.mark.parametrize("max_logits", [1, 22, 33, 1000])
def test_the_head_gives_the_same_in_chunks_of_any_size(max_logits: int) -> None:
    hidden, head, grad = draw(6, 4), draw(11, 4, seed=1), draw(9, seed=2)
    source, targets = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 5]), torch.tensor([3, 3, 0, 10, 1, 2, 9, 4, 4])

    def plain(hidden: Tensor) -> Tensor:
        return torch.log_softmax(hidden @ head.T / 0.7, -1)[source, targets]

    with torch.no_grad():
        logp, entropy, tape = token_scores(hidden, head, source, targets, 0.7, max_logits)
        by_hidden = token_scores_backward(grad, tape, head, 0.7, max_logits)
    torch.testing.assert_close(logp, plain(hidden))
    logprobs = torch.log_softmax(hidden @ head.T / 0.7, -1)
    torch.testing.assert_close(entropy, -(logprobs.exp() * logprobs).sum(-1)[source])
    torch.testing.assert_close(by_hidden, by_autograd(plain, hidden, grad))


def test_chosen_kernels_multiply_in_float32() -> None:
    chosen = choose_float32_kernels()
    assert choose_float32_kernels() == chosen
    left, right = draw(96, 128), draw(128, 80, seed=1)
    exact = left.double() @ right.double()
    assert float((left @ right - exact).abs().max()) < 1e-4  # bfloat16 would be off by about 0.1
