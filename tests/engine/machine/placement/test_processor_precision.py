"""A trainer on the processor keeps a large base in bfloat16 where that is measured to be fast, and says why."""

from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Machine, Rates
from marlaas.engine.machine.placement.choices import Choices
from tests.engine.machine.placement.imaginary import place

from .imaginary import B06, LAPTOP, NOTHING, TINY

AMX = Rates(150e9, 12e9, 1.1e12)
DOUBLE = Rates(150e9, 12e9, 320e9)
"""AVX-512 BF16 alone: 1.9 to 2.2 times, by the look."""
EMULATED = Rates(150e9, 12e9, 1e9)


@pytest.mark.parametrize(
    ("rates", "precision", "chosen"),
    [
        (AMX, "auto", "bf16"),
        (DOUBLE, "auto", "f32"),
        (replace(DOUBLE, bfloat16=285e9), "auto", "f32"),
        (replace(DOUBLE, bfloat16=450e9), "auto", "bf16"),
        (EMULATED, "auto", "f32"),
        (replace(AMX, bfloat16=0.0), "auto", "f32"),
        (None, "auto", "f32"),
        (AMX, "f32", "f32"),
        (EMULATED, "bf16", "bf16"),
        (None, "bf16", "bf16"),
    ],
)
def test_a_large_base_goes_by_the_measured_gain(rates: Rates | None, precision: str, chosen: str) -> None:
    machine = Machine(replace(LAPTOP, rates=rates))
    assert place(machine, NOTHING, B06, Choices(precision=precision)).trainer.precision == chosen
    small = place(machine, NOTHING, TINY, Choices(precision=precision)).trainer.precision
    assert small == ("bf16" if precision == "bf16" else "f32"), "a small base stays as exact as it is"


def test_one_copy_with_vllm_stays_as_vllm_keeps_it() -> None:
    machine, choices = Machine(replace(LAPTOP, rates=AMX)), Choices(sampler="vllm", share="base")
    software = replace(NOTHING, vllm="0.32", vllm_build="cpu")
    assert place(machine, software, B06, choices).trainer.precision == "f32"


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (AMX, "The trainer's base is in bfloat16: this processor multiplies it 7.3 times as fast as float32."),
        (EMULATED, "This processor has no fast bfloat16; the trainer uses float32."),
        (replace(AMX, bfloat16=0.0), "The trainer's base is in float32: bfloat16 is multiplied wrongly here, or not"),
        (None, "Whether bfloat16 is faster here is not measured: `marlaas doctor --measure` does."),
    ],
)
def test_the_reason_has_the_figure(rates: Rates | None, said: str) -> None:
    machine = Machine(replace(LAPTOP, rates=rates))
    assert said in place(machine, NOTHING, B06).reasons[-1]
    for base, choices in ((TINY, Choices()), (B06, Choices(precision="f32", sampler="llama.cpp"))):
        assert "bfloat16" not in " ".join(place(machine, NOTHING, base, choices).reasons)
