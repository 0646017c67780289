"""Attention in tiles is attention, and the head gives the same in tiles of any size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from marlaas.engine.models.tensors import HeadShape
from marlaas.engine.trainer.decoder.attention import FusedAttention, TiledAttention
from marlaas.engine.trainer.decoder.decoder import compute_on
from marlaas.engine.trainer.decoder.layer import entropies_backward, token_logprobs, token_scores, token_scores_backward
from marlaas.engine.trainer.decoder.packing import Places, families, pack
from marlaas.engine.trainer.protocol import TrainGroup

from ...examples import examples
from ...seldom import seldom
from .held import Held, Largest
from .random_models import random_groups
from .samples import sequence

CPU = torch.device("cpu")

heads = st.builds(
    lambda keys, fold, size: HeadShape(keys * fold, keys, size),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([4, 8, 16]),
)


def places_of(groups: list[TrainGroup], device: torch.device = CPU) -> Places:
    return Places.of(pack([(0, family) for group in groups for family in families(group)]), device)


def computed(attention: Any, seed: int = 0, device: torch.device = CPU) -> tuple[torch.Tensor, ...]:
    """Outputs and gradients for random inputs; the padding's gradient is 0, as in a pass."""
    draw, shape = torch.Generator().manual_seed(seed), attention.heads
    turned = torch.randn(attention.places, shape.turned, shape.size, generator=draw)
    v = torch.randn(attention.places, shape.keys * shape.size, generator=draw)
    grad = torch.randn(attention.places, shape.queries * shape.size, generator=draw)
    grad[-1] = 0.0
    with torch.no_grad():
        outputs, tape = attention.forward(turned.to(device), v.to(device))
        by_turned, by_v = attention.backward(grad.to(device), tape)
    return outputs[:-1].float(), by_turned[:-1], by_v[:-1]


class Plain:
    """Every sequence by itself, by autograd: a softmax over the scores of the tokens that each token sees."""

    def __init__(self, heads: HeadShape, places: Places) -> None:
        self.heads, self.places, self._batch = heads, len(places.tokens), places

    def forward(self, turned: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return self._outputs(turned, v), (turned, v)

    def backward(self, grad: torch.Tensor, tape: Any) -> tuple[torch.Tensor, torch.Tensor]:
        leaves = [part.clone().requires_grad_() for part in tape]
        with torch.enable_grad():
            (self._outputs(*leaves) * grad).sum().backward()  # type: ignore[no-untyped-call]
        by_turned, by_v = (leaf.grad for leaf in leaves)
        assert by_turned is not None and by_v is not None
        return by_turned, by_v

    def _outputs(self, turned: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, outputs = self.heads, torch.zeros(self.places, self.heads.queries, self.heads.size)
        k, v = (
            part.view(self.places, heads.keys, heads.size).repeat_interleave(heads.fold, 1)
            for part in (turned[:, heads.queries :], v)
        )
        for number, length in enumerate(self._batch.prefix_lengths.tolist()):
            prompt = self._batch.prefixes[number, :length].tolist()
            for row in ([], *self._batch.rows[number].tolist()):
                sequence = [*prompt, *(place for place in row if place != self.places - 1)]
                begin = length if row else 0
                scores = torch.einsum("qhd,khd->hqk", turned[sequence, : heads.queries], k[sequence]) * heads.scale
                unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
                attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v[sequence])
                outputs = outputs.index_copy(0, torch.tensor(sequence[begin:], dtype=torch.int64), attended[begin:])
        return outputs.flatten(1)


def used(places: Places) -> torch.Tensor:
    """Whether each place but the last has a token: what is computed for the others is undefined."""
    tokens = torch.cat([places.prefixes.flatten(), places.rows.flatten()])
    return torch.isin(torch.arange(len(places.tokens) - 1), tokens)


@settings(max_examples=examples(10), deadline=None)
@given(heads, st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6), st.sampled_from([3, 30, 100]))
def test_tiles_and_fused_kernels_give_plain_attention(
    shape: HeadShape, seed: int, groups: int, members: int, longest: int
) -> None:
    places = places_of(random_groups(seed, groups, members, longest))
    known = used(places)
    found = computed(TiledAttention.of(places, shape), seed)
    fused, expected = computed(FusedAttention.of(places, shape), seed), computed(Plain(shape, places), seed)
    for ours, plain in [*zip(found, expected, strict=True), *zip(fused, expected, strict=True)]:
        # sums of up to 600 values of size 1 in float32, in another order
        torch.testing.assert_close(ours[known], plain[known], rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_card_never_holds_scores(kind: torch.dtype) -> None:
    """Torch refuses, rather than to take the kernel that holds them."""
    card, shape, groups = torch.device("cuda"), HeadShape(6, 2, 16), random_groups(0, 3, 4, 60)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        computed(FusedAttention.of(places_of(groups, card), shape, kind), device=card)


@settings(max_examples=examples(10), deadline=None)
@given(heads, st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.sampled_from([5, 200]))
def test_bfloat16_is_off_by_roundings_alone(
    shape: HeadShape, seed: int, groups: int, members: int, longest: int
) -> None:
    places = places_of(random_groups(seed, groups, members, longest))
    known, kinds = used(places), (TiledAttention.of, FusedAttention.of)
    exact = computed(Plain(shape, places), seed)
    for kind in kinds:
        for ours, right in zip(computed(kind(places, shape, torch.bfloat16), seed), exact, strict=True):
            # 8 bits: queries, keys, values and results are each off by up to 1/256
            assert float((ours[known] - right[known]).norm() / right[known].norm()) < 0.02


def long_group(tokens: int) -> TrainGroup:
    draw = np.random.default_rng(tokens)
    return TrainGroup(0, (sequence(draw.integers(0, 9, tokens).tolist(), tokens // 2, 1.0),))


@pytest.mark.parametrize("precision", ["f32", seldom("bf16")])
def test_memory_of_a_long_sequence_grows_with_its_length(precision: str) -> None:
    compute, shape, most = compute_on("cpu", precision), HeadShape(4, 2, 16), []  # type: ignore[arg-type]
    for tokens in (2048, 8192):
        with Held() as held:
            attention = compute.attention(places_of([long_group(tokens)]), shape)
            computed(attention)
        assert isinstance(attention, TiledAttention)
        most.append(held.most)
    assert most[1] < 4.5 * most[0], "four times the tokens: plain products hold 16 times as much"
    assert most[1] < 8192 * 40 * 16 * 4, "40 vectors for each token, of which 8 go in, and 8 are gradients"


def test_short_sequences_keep_plain_products() -> None:
    shape = HeadShape(4, 2, 16)
    for precision, kind, most in (("f32", FusedAttention, 368), ("bf16", FusedAttention, 1008)):
        chosen = compute_on("cpu", precision).attention  # type: ignore[arg-type]
        assert isinstance(chosen(places_of([long_group(most)]), shape), kind)
        assert isinstance(chosen(places_of([long_group(most + 16)]), shape), TiledAttention)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_autograd(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (result,) = torch.autograd.grad(function(leaf), leaf, grad)
    return result


@pytest.mark.usefixtures("each_library")
@pytest.mark.parametrize("tile", [(1, 1), (2, 5), (100, 100)])
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
@pytest.mark.parametrize("temperature", [0.7, torch.tensor([[0.5], [1.0], [1.3], [0.8], [1.0], [2.0]])])
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
