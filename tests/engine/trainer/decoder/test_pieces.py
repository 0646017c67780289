"""Each hand-written backward against autograd, and the chunked head against the whole one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from marlaas.engine.models.kernels import rms_norm, rms_norm_backward, rotate, swiglu, swiglu_backward
from marlaas.engine.trainer.decoder.layer import entropies_backward, token_logprobs, token_scores, token_scores_backward

from ..largest import Largest


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


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize("tile", [(1, 1), (2, 5), (6, 4), (100, 100)])
def test_the_head_gives_the_same_in_tiles_of_any_size(tile: tuple[int, int]) -> None:
    hidden, head, grad = draw(6, 4), draw(11, 4, seed=1), draw(9, seed=2)
    source, targets = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 5]), torch.tensor([3, 3, 0, 10, 1, 2, 9, 4, 4])

    def plain(hidden: Tensor) -> Tensor:
        return torch.log_softmax(hidden @ head.T / 0.7, -1)[source, targets]

    with torch.no_grad():
        logp, entropy, tape = token_scores(hidden, head, source, targets, 0.7, tile)
        again = token_logprobs(hidden, head, source, targets, 0.7, tile)
        by_hidden = token_scores_backward(grad, tape, head, 0.7)
    torch.testing.assert_close(logp, plain(hidden))
    torch.testing.assert_close(again, plain(hidden))
    logprobs = torch.log_softmax(hidden @ head.T / 0.7, -1)
    torch.testing.assert_close(entropy, -(logprobs.exp() * logprobs).sum(-1)[source])
    torch.testing.assert_close(by_hidden, by_autograd(plain, hidden, grad))


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize("tile", [(1, 1), (2, 5), (100, 100)])
@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.tensor([[0.5], [1.0], [1.3], [0.8], [1.0], [2.0]])])
def test_the_entropies_have_their_derivative(tile: tuple[int, int], temperature: float | Tensor) -> None:
    """Against autograd over whole logits, and finite differences of these in double precision."""
    hidden, head, grad = 2 * draw(6, 4), draw(11, 4, seed=1), draw(9, seed=2)
    source, targets = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 5]), torch.tensor([3, 3, 0, 10, 1, 2, 9, 4, 4])

    def plain(hidden: Tensor) -> Tensor:
        logprobs = torch.log_softmax(hidden @ head.to(hidden.dtype).T / temperature, -1)
        return -(logprobs.exp() * logprobs).sum(-1)[source]

    with torch.no_grad():
        _, entropy, tape = token_scores(hidden, head, source, targets, temperature, tile)
        by_hidden = entropies_backward(grad, tape, head, temperature, tile)
    torch.testing.assert_close(entropy, plain(hidden))
    torch.testing.assert_close(by_hidden, by_autograd(plain, hidden, grad))
    for place in ((0, 1), (3, 2), (5, 0)):
        moved = torch.zeros(6, 4, dtype=torch.float64)
        moved[place] = 1e-6
        slope = (plain(hidden.double() + moved) - plain(hidden.double() - moved)) @ grad.double() / 2e-6
        assert float(by_hidden[place]) == pytest.approx(float(slope), rel=1e-4, abs=1e-5)  # of float32's rounding


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize("size", [30.0, 300.0])
def test_the_head_is_precise_where_logits_are_large(size: float) -> None:
    """Sums relative to the largest logit so far neither overflow nor vanish, whichever tile holds the largest."""
    hidden, head = draw(5, 8) * size, draw(64, 8, seed=1)
    source, targets, grad = torch.arange(5), torch.tensor([0, 13, 31, 40, 63]), draw(5, seed=2)

    def plain(hidden: Tensor) -> Tensor:
        return torch.log_softmax(hidden @ head.double().T, -1)[source, targets]

    with torch.no_grad():
        logp, entropy, tape = token_scores(hidden, head, source, targets, 1.0, (2, 7))
        by_hidden = token_scores_backward(grad, tape, head, 1.0)
        by_entropy = entropies_backward(grad, tape, head, 1.0, (2, 7))
    exact = plain(hidden.double())

    def spread(hidden: Tensor) -> Tensor:
        logprobs = torch.log_softmax(hidden @ head.double().T, -1)
        return -(logprobs.exp() * logprobs).sum(-1)[source]

    slope = by_autograd(spread, hidden.double(), grad.double())
    # a logit of 1,000 has an ulp of 6e-5 in float32, which a weight p · (log p + H) has, too
    torch.testing.assert_close(by_entropy.double(), slope, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(logp.double(), exact, rtol=1e-5, atol=1e-4)
    assert float(entropy.min()) >= 0.0 and float(entropy.max()) < 4.16
    torch.testing.assert_close(
        by_hidden.double(), by_autograd(plain, hidden.double(), grad.double()), rtol=1e-4, atol=1e-4
    )


def test_the_head_never_holds_the_logits_of_a_step() -> None:
    """Its largest tensors are one tile and a few as large as the hidden states."""
    hidden, head, targets = draw(200, 8), draw(30_000, 8, seed=1), torch.arange(200)
    with torch.no_grad(), Largest(head.numel()) as largest:
        _, _, tape = token_scores(hidden, head, targets, targets, 0.9)
        entropies_backward(draw(200), tape, head, 0.9)
    assert largest.elements == 200 * 1024
