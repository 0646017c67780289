"""Layers that keep their inputs alone give the same gradient, in the memory that the plan says."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.memory import PassSize
from marlaas.engine.trainer.decoder.decoder import Compute, Decoder, compute_on, for_card
from marlaas.engine.trainer.decoder.packing import families, pack
from marlaas.engine.trainer.model import Slopes
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup

from ..held import Held
from ..samples import sequence
from .random_models import VOCABULARY, save_model
from .test_against_peft import policy

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
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return load_base(save_model(tmp_path_factory.mktemp("base"), SHAPE, 1))


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


@pytest.mark.parametrize("kernels", COMPUTE)
@pytest.mark.parametrize(("prompt", "answer"), [(16, 112), (200, 56)])
def test_without_room_a_pass_holds_less_and_gives_the_same(
    base: BaseModel, kernels: str, prompt: int, answer: int
) -> None:
    compute, some = COMPUTE[kernels](), group(prompt, answer)
    batch = pack([(0, family) for family in families(some)])
    size = PassSize(base.config, len(batch.tokens), compute.kept)
    whole, much = differentiated(base, compute, some, size.all)
    again, little = differentiated(base, compute, some, size.all - 1)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
    assert little < much / 2
    assert 0.4 * size.all < much <= size.all  # what it may hold is more than what it does
    assert 0.35 * size.inputs < little <= size.inputs  # the two parts of a layer never go back at the same time


def test_a_long_sequence_needs_no_more_for_what_is_wide(base: BaseModel) -> None:
    """The feed-forward part is computed some rows at a time: here it would take most of the memory."""
    some, exact = group(500, 100), compute_on("cpu")
    few = replace(exact, kept=replace(exact.kept, rows=100))
    batch = pack([(0, family) for family in families(some)])
    sizes = [PassSize(base.config, len(batch.tokens), compute.kept).inputs for compute in (exact, few)]
    whole, much = differentiated(base, exact, some, 1)
    again, little = differentiated(base, few, some, 1)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
    assert 0.35 * sizes[0] < much <= sizes[0] and 0.35 * sizes[1] < little <= sizes[1]
    assert little < 0.8 * much


def test_batches_are_sized_for_what_keeps_all(base: BaseModel) -> None:
    """Groups of one call are divided so that no layer is computed once more, unless a long prompt would come too often.

    A sequence that has no room by itself is computed once more, in a batch of its own.
    """
    kept = compute_on("cpu").kept
    room = PassSize(base.config, 256, kept).all
    model = Decoder.of(base, compute_on("cpu"), room)

    def kinds(*groups: TrainGroup) -> list[tuple[int, bool]]:
        batches = list(model.batches([groups]))
        assert sum(len(s.tokens) > 1 for b in batches for lesson in b.lessons for s in lesson.sequences) == sum(
            len(some.sequences) for some in groups
        )
        return [(len(b.tokens), model.keeps_all(b)) for b in batches]

    short = kinds(*(group(20 + number, 60) for number in range(8)))
    assert len(short) > 1 and all(keeps for _, keeps in short)
    assert kinds(group(300, 20)) == [(384, False)], "three answers to a prompt, of which there is one"
    (alone,) = kinds(TrainGroup(0, group(100, 900).sequences[:1]))
    assert alone[0] > 900 and not alone[1]
    halves = kinds(group(40, 100))
    assert len(halves) > 1 and all(keeps for _, keeps in halves)


def test_sixteen_bits_are_planned_with_less(base: BaseModel) -> None:
    sizes = [PassSize(base.config, 1000, compute().kept).all for compute in COMPUTE.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[3] < 0.8 * sizes[0]
