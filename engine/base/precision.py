"""The precisions in which samplers keep a base, by their names in ``marlaas.toml``. Standard library only."""

from __future__ import annotations

PRECISIONS = ("f32", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
"""Those of llama.cpp, from exact to small."""

GGUF = "gguf"
"""llama.cpp samples from the GGUF file that the base came in (``BaseModel.gguf``), in whatever precision that has."""

BFLOAT16 = "bf16"
"""The torch sampler's, beside float32: bfloat16."""

WRITTEN = ("f32", "f16")
"""Those that our own writer makes; llama.cpp's quantizer makes the others from float32."""

REPEATABLE = ("f32", "f16", "q8_0", BFLOAT16)
"""Those whose results are the same to the last bit, whatever runs beside. With the others llama.cpp multiplies eight
rows or more in another way than fewer; so does torch in bfloat16, except for turns that ask for the same bits."""

BITS = {"f32": 32.0, "f16": 16.0, BFLOAT16: 16.0, "q8_0": 8.5, "q6_k": 6.5625, "q5_k_m": 5.7, "q4_k_m": 4.85}
"""Bits per weight, block scales included; for mixed types those of models of usual shape."""


def halves_memory(weights: str) -> bool:
    """Whether llama.cpp keeps keys and values in float16 on a processor, even for ``exact`` attention.

    It does for matrices other than float32, which round more than that does.
    """
    return weights != "f32"


def nearest(bits: float) -> str:
    """The precision whose weights take about ``bits`` each, for a file whose precision is not known."""
    return min(PRECISIONS, key=lambda precision: abs(BITS[precision] - bits))
