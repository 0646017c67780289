"""The decoder gives what transformers and PEFT give, for a policy or several, with and without room."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from marlaas.engine.models.config import unsupported
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.kernels import widened_product
from marlaas.engine.models.memory import PASS_BYTES, Budget, PassSize
from marlaas.engine.trainer.decoder.decoder import Compute, Decoder, compute_on, for_card
from marlaas.engine.trainer.decoder.linear import Adapter, Linear, Matrix, Policy, Spans, Stacked, product
from marlaas.engine.trainer.decoder.packing import families, pack, packed_batches
from marlaas.engine.trainer.group_pass import add_gradients
from marlaas.engine.trainer.losses import LOSSES
from marlaas.engine.trainer.memory import PolicyMemory, fresh
from marlaas.engine.trainer.model import Model, Slopes
from marlaas.engine.trainer.peft_model import PeftModel
from marlaas.engine.trainer.protocol import GroupStats, PolicyConfig, TrainGroup

from ...examples import examples
from ...seldom import often
from .held import Held
from .random_models import VOCABULARY, random_groups, save_model, shapes
from .samples import sequence, sequence_logprobs


def policy(model: Model[Any], config: PolicyConfig, device: str = "cpu") -> PolicyMemory:
    """Open, with B away from zero so that A has a gradient, too."""
    layout = model.layout(config.rank, config.targets)
    state = fresh(config, layout)
    generator = torch.Generator().manual_seed(config.seed)
    for name, view in layout.views(state.weights).items():
        if name.endswith(".lora_B"):
            view.copy_(torch.randn(view.shape, generator=generator) * 0.1)
    return PolicyMemory.of(config, layout, state.to(device))


def outcome(model: Model[Any], config: PolicyConfig, groups: list[TrainGroup]) -> tuple[GroupStats, dict[str, Any]]:
    memory = policy(model, config)
    stats = add_gradients(model, [(memory, groups)])[0]
    return stats, memory.layout.views(memory.gradient.numpy())


targets = st.sampled_from([(), ("attention",), ("mlp",), ("v_proj", "down_proj")])


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shapes,
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([1.0, 0.6]),
    st.sampled_from([20, 1_000]),
    st.booleans(),
    targets,
)
def test_gradients_and_statistics_are_those_of_peft(
    shape: dict[str, Any],
    seed: int,
    groups: int,
    members: int,
    longest: int,
    rank: int,
    kl: float,
    temperature: float,
    max_tokens: int,
    short_of_memory: bool,
    targets: tuple[str, ...],
) -> None:
    config = PolicyConfig(
        rank=rank,
        alpha=2.0 * rank,
        targets=targets,
        kl=kl,
        temperature=temperature,
        seed=seed,
        denominator=float(groups * members),
    )
    some = random_groups(seed, groups, members, longest)
    with tempfile.TemporaryDirectory() as folder:
        base = save_model(Path(folder), shape, seed)
        decoder, peft = Decoder.of(load_base(base), room=1 if short_of_memory else PASS_BYTES), PeftModel(base)
    assert decoder.layout(rank, targets) == peft.layout(rank, targets)
    with patch.object(Budget, "tokens", lambda *_: max_tokens):  # small ones divide families
        ours, our_gradients = outcome(decoder, config, some)
    theirs, their_gradients = outcome(peft, config, some)
    largest = max(float(np.abs(gradient).max()) for gradient in their_gradients.values())
    for name, gradient in their_gradients.items():
        assert np.allclose(our_gradients[name], gradient, atol=2e-4 * largest + 1e-7, rtol=1e-3), name
    assert (ours.tokens, ours.measured) == (theirs.tokens, theirs.measured)
    for what in ("loss", "entropy", "gap_sum", "gap_max", "kl"):
        assert np.isclose(getattr(ours, what), getattr(theirs, what), rtol=2e-3, atol=1e-4), what


@settings(max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.integers(0, 10_000))
def test_log_probabilities_are_those_of_peft(shape: dict[str, Any], seed: int) -> None:
    config = PolicyConfig(rank=4, seed=seed)
    sequence = random_groups(seed, 1, 1, 30)[0].sequences[0].tokens
    with tempfile.TemporaryDirectory() as folder:
        base = save_model(Path(folder), shape, seed)
        models: list[Model[Any]] = [Decoder.of(load_base(base)), PeftModel(base)]
    ours, theirs = (sequence_logprobs(model, policy(model, config), sequence, 1, 0.8) for model in models)
    assert np.allclose(ours, theirs, atol=5e-5)


def test_what_the_decoder_does_not_compute_is_named(base: str) -> None:
    config = load_base(base).config
    assert unsupported(config) == ""
    assert unsupported(replace(config, architecture="gpt2")) == "its architecture is gpt2"
    assert "scaled by dynamic" in unsupported(replace(config, rope_scaling={"rope_type": "dynamic"}))
    assert "sliding window" in unsupported(replace(config, sliding_window=True))


configs = st.builds(
    PolicyConfig,
    rank=st.integers(1, 6),
    alpha=st.sampled_from([1.0, 8.0]),
    targets=targets,
    loss=st.sampled_from(sorted(LOSSES)),
    kl=st.sampled_from([0.0, 0.0, 0.4]),
    temperature=st.sampled_from([1.0, 1.0, 0.6]),
    seed=st.integers(0, 3),
    epochs=st.integers(1, 2),
)

jobs = st.tuples(configs, st.integers(0, 10_000), st.integers(0, 3), st.integers(1, 4), st.integers(1, 12))


@settings(max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.lists(jobs, min_size=2, max_size=8), st.sampled_from([30, 1_000]), st.sampled_from([0, 7, 2048]))
def test_together_is_as_alone(
    shape: dict[str, Any],
    jobs: list[tuple[PolicyConfig, int, int, int, int]],
    max_tokens: int,
    rows: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(save_model(Path(folder), shape, 0))
        exact = compute_on("cpu")
        compute = replace(exact, kept=replace(exact.kept, rows=rows or 1))
        model = Decoder.of(base, compute, room=1 if rows else PASS_BYTES)  # without room, so many rows at a time
    works = [[(policy(model, config), random_groups(seed, *sizes)) for config, seed, *sizes in jobs] for _ in range(2)]
    together, single = works
    with patch.object(Budget, "tokens", lambda *_: max_tokens):
        shared = add_gradients(model, together)
        apart = [add_gradients(model, [one])[0] for one in single]
    for (ours, _), (theirs, _), stats, expected in zip(together, single, shared, apart, strict=True):
        scale = float(theirs.gradient.abs().max())
        np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=2e-4 * scale + 1e-7, rtol=1e-3)
        assert (ours.tokens, stats.tokens, stats.measured) == (theirs.tokens, expected.tokens, expected.measured)
        for what in ("loss", "entropy", "gap_sum", "gap_max", "kl"):
            assert np.isclose(getattr(stats, what), getattr(expected, what), rtol=2e-3, atol=1e-4), what
        notes = [[s.proximal for group in memory.rehearsal for s in group.sequences] for memory in (ours, theirs)]
        assert len(notes[0]) == len(notes[1])


DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
"""A card's kernels run on both."""

CONFIGS = [
    PolicyConfig(rank=3, seed=1),
    PolicyConfig(rank=5, alpha=8.0, targets=("q_proj", "mlp"), kl=0.3, temperature=0.7, seed=2),
    PolicyConfig(rank=1, loss="cispo", seed=3),
]


def gradients(
    model: Decoder, configs: list[PolicyConfig], seed: int, longest: int, device: str = "cpu"
) -> list[np.ndarray]:
    work = [
        (policy(model, config, device), random_groups(seed + number, 2, 4, longest))
        for number, config in enumerate(configs)
    ]
    add_gradients(model, work)
    return [memory.gradient.cpu().numpy() for memory, _ in work]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_gradients_and_log_probabilities_are_the_same(
    device: str, shape: dict[str, Any], seed: int, longest: int, policies: int, short_of_memory: bool
) -> None:
    room, compute = 1 if short_of_memory else 1 << 30, for_card(torch.device(device), "f32")
    if short_of_memory:  # then some rows at a time, of which the last ones may be no policy's
        compute = replace(compute, kept=replace(compute.kept, rows=7))
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(save_model(Path(folder), shape, seed))
        plain, card = Decoder.of(base), Decoder.of(base, compute, room)
    expected = gradients(plain, CONFIGS[:policies], seed, longest)
    found = gradients(card, CONFIGS[:policies], seed, longest, device)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max() + 1e-7, rtol=1e-3)
    tokens = random_groups(seed, 1, 1, 30)[0].sequences[0].tokens
    ours, theirs = (
        sequence_logprobs(model, policy(model, CONFIGS[1], on), tokens, 1, 0.8)
        for model, on in ((card, device), (plain, "cpu"))
    )
    np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_a_card_multiplies_into_float32() -> None:
    """What torch promises of such a product, on a device that computes nothing."""
    left, right = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((5, 8), (8, 3)))
    found = product(left, right, torch.float32)
    assert (found.dtype, found.shape) == (torch.float32, (5, 3))


def test_what_is_chosen_follows_the_device() -> None:
    assert compute_on("meta", "bf16").most > compute_on("cpu").most == Budget().most


MODULES, OUTPUTS, INPUTS = ("q", "k"), (24, 8), 16


def spans_of(counts: list[int]) -> Spans:
    return tuple(slice(begin, end) for begin, end in pairwise([0, *np.cumsum(counts).tolist()]))


def policies(ranks: list[int]) -> list[Policy]:
    """Random, with gradients that are not empty."""
    draw = torch.Generator().manual_seed(sum(ranks))
    drawn = []
    for rank in ranks:
        shapes = {f"{name}.lora_A": (rank, INPUTS) for name in MODULES}
        shapes |= {f"{name}.lora_B": (out, rank) for name, out in zip(MODULES, OUTPUTS, strict=True)}
        weights, gradients = (
            {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()} for _ in range(2)
        )
        drawn.append((0.5 + rank, weights, gradients))
    return drawn


def passed(drawn: list[Policy], stacked: bool, x: Tensor, grad: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Outputs, and gradients by the input."""
    linear = Linear(MODULES, OUTPUTS, INPUTS, Matrix(torch.zeros(sum(OUTPUTS), INPUTS)), None)
    adapters = tuple(Adapter.of(each, linear) for each in drawn)
    linear = Linear(MODULES, OUTPUTS, INPUTS, linear.matrix, None, Stacked.of(adapters) if stacked else adapters)
    y, applied = linear.forward(x, spans)
    return y, linear.backward(grad, applied, spans)


@pytest.mark.parametrize("stacked", [False, True])
def test_values_that_are_not_finite_stay_with_their_policy(stacked: bool) -> None:
    spans, drawn = spans_of([3, 4, 2]), policies([2, 3, 2])
    x, grad = torch.randn(9, INPUTS), torch.randn(9, sum(OUTPUTS))
    x[4], grad[3], drawn[1][1]["q.lora_A"][0, 0] = torch.inf, torch.nan, torch.inf
    drawn[1][1]["k.lora_B"][0, 0] = torch.nan
    for result in passed(drawn, stacked, x, grad, spans):
        assert not result[3:7].isfinite().all()
        assert result[:3].isfinite().all() and result[7:].isfinite().all()
    clean = [all(gradient.isfinite().all() for gradient in gradients.values()) for _, _, gradients in drawn]
    assert clean == [True, False, True]


def test_prompts_and_equal_answers_are_laid_down_once() -> None:
    some = TrainGroup(
        0,
        (
            sequence([5, 6, 7, 8, 9], 2, 0.5),
            sequence([5, 6, 7, 8, 1], 2, 0.1),  # differs in the last token only, which is no input
            sequence([5, 6, 7, 2], 2, 0.2),  # its input, a 7, begins the others'
            sequence([5, 6, 3, 2], 2, -0.8),
        ),
    )
    (family,) = families(some)
    assert [row.tolist() for row in family.rows] == [[7, 8], [3]]
    (batch,) = packed_batches([[some]], 1000)
    used = 2 + 2 + 1
    assert sorted(batch.tokens[:used].tolist()) == [3, 5, 6, 7, 8]
    assert batch.positions[:used].tolist() == [0, 1, 2, 3, 2]
    assert len(set(batch.needed) - {len(batch.tokens) - 1}) == 4  # the prompt's end, after 7, after 7 8, after 3
    assert batch.targets.tolist() == [7, 8, 9, 7, 8, 1, 7, 2, 3, 2]


def test_one_long_prompt_does_not_pad_all_the_short_ones() -> None:
    short = [TrainGroup(n, tuple(sequence([n, 1, 2, 3 + i], 3, 0.5) for i in range(4))) for n in range(40)]
    long = TrainGroup(99, (sequence([1] * 400, 396, 0.5),))
    batches = list(packed_batches([short[:20], [long], short[20:]], 1000))
    for batch in batches:
        assert batch.prefixes.size + batch.rows.size <= 2 * 1000 + 8 * 60  # rounding
    together = [len(batch.prefixes) for batch in batches]
    assert sum(together) == 41 and len(together) <= 4


CPU = torch.device("cpu")

SHAPE = {
    "family": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "fold": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def eight_layers(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    widened_product(torch.ones(2, 2), torch.ones(2, 2))  # probes once in a process, which is no memory of a pass
    return load_base(save_model(tmp_path_factory.mktemp("eight_layers"), SHAPE, 1))


def group(prompt: int, answer: int) -> TrainGroup:
    draw = torch.Generator().manual_seed(prompt)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = torch.randint(VOCABULARY, (count,), generator=draw).tolist()
        return drawn

    start = tokens(prompt)
    return TrainGroup(0, tuple(sequence(start + tokens(answer), prompt, 0.5 - n) for n in range(3)))


def differentiated(base: BaseModel, compute: Compute, group: TrainGroup, room: int) -> tuple[Tensor, int]:
    """The gradient, and the bytes that the pass held at a time."""
    model = Decoder.of(base, compute, room)
    memory = policy(model, PolicyConfig(rank=4))
    model.mount([memory])
    batch = pack([(0, family) for family in families(group)])
    with Held() as held:
        model.differentiate(batch, (1.0,), lambda logp, _: Slopes(torch.ones_like(logp)))
    return memory.gradient, held.most


COMPUTE: dict[str, Callable[[], Compute]] = {
    "processor": lambda: compute_on("cpu"),
    "card": lambda: for_card(CPU, "f32"),
    "card in bfloat16": lambda: for_card(CPU, "bf16"),
    "processor in bfloat16": lambda: compute_on("cpu", "bf16"),
}


@pytest.mark.parametrize(
    ("kernels", "prompt", "answer"),
    often(
        [("processor", 16, 112)],
        [(kernels, *sizes) for kernels in COMPUTE for sizes in ((16, 112), (200, 56))],
        several=True,
    ),
)
def test_without_room_a_pass_holds_less_and_gives_the_same(
    eight_layers: BaseModel, kernels: str, prompt: int, answer: int
) -> None:
    compute, some = COMPUTE[kernels](), group(prompt, answer)
    batch = pack([(0, family) for family in families(some)])
    size = PassSize(eight_layers.config, len(batch.tokens), compute.kept)
    whole, much = differentiated(eight_layers, compute, some, size.all)
    again, little = differentiated(eight_layers, compute, some, size.all - 1)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
    assert little < much / 2
    assert 0.4 * size.all < much <= size.all  # what it may hold is more than what it does
    assert 0.35 * size.inputs < little <= size.inputs  # the two parts of a layer never go back at the same time


@pytest.mark.slow
def test_a_long_sequence_needs_no_more_for_what_is_wide(eight_layers: BaseModel) -> None:
    """The feed-forward part is computed some rows at a time: here it would take most of the memory."""
    some, exact = group(400, 80), compute_on("cpu")
    few = replace(exact, kept=replace(exact.kept, rows=80))
    batch = pack([(0, family) for family in families(some)])
    sizes = [PassSize(eight_layers.config, len(batch.tokens), compute.kept).inputs for compute in (exact, few)]
    whole, much = differentiated(eight_layers, exact, some, 1)
    again, little = differentiated(eight_layers, few, some, 1)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
    assert 0.35 * sizes[0] < much <= sizes[0] and 0.35 * sizes[1] < little <= sizes[1]
    assert little < 0.8 * much
