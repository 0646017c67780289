"""Which gaps are rounding."""

import math

from marlaas.engine.home.settings import RolloutSettings
from marlaas.engine.machine.routing.router import EXACT, FAST, HALF, ROUNDED, Tolerance, tolerance_of
from marlaas.engine.models.config import PRECISIONS


def test_what_is_not_a_number_is_never_rounding() -> None:
    assert Tolerance().holds(1e9, 1e9)
    assert not Tolerance().holds(math.nan, 0.0)
    assert not Tolerance().holds(0.0, math.nan)


def test_the_less_exact_the_weights_the_wider() -> None:
    means = [ROUNDED[weights].mean for weights in PRECISIONS if math.isfinite(ROUNDED[weights].mean)]
    assert means == sorted(means) and len(means) == len(PRECISIONS) - 2


def test_what_computes_in_float32_is_held_to_it() -> None:
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", exact=True), "f32") == EXACT
    assert tolerance_of(RolloutSettings(sampler="torch", exact=False), "f32") == EXACT
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", exact=False), "f32") == FAST
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", exact=True), "f16") == FAST
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", exact=True), "q8_0") == ROUNDED["q8_0"]


def test_bfloat16_is_held_to_less_than_eight_bits() -> None:
    torch = RolloutSettings(sampler="torch")
    assert ROUNDED["bf16"].mean < ROUNDED["q8_0"].mean
    assert tolerance_of(torch, "bf16") == ROUNDED["bf16"]
    assert HALF.mean < ROUNDED["q8_0"].mean, "sixteen bits on both sides are less far apart than eight on one"
    assert tolerance_of(torch, "bf16", exact=False) == HALF, "the trainer's base may be in bfloat16, too"


def test_what_a_person_converted_may_be_rounded() -> None:
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", gguf="own.gguf"), "f32") == FAST
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", gguf="own.gguf"), "q4_k_m") == ROUNDED["q4_k_m"]


def test_half_precision_is_not_held_to_single() -> None:
    assert tolerance_of(RolloutSettings(sampler="vllm"), "f16", exact=False) == HALF
    assert tolerance_of(RolloutSettings(sampler="llama.cpp", exact=True), "f32", exact=False) == HALF
    assert tolerance_of(RolloutSettings(), "q4_k_m", exact=False) == ROUNDED["q4_k_m"]
