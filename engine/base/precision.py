"""How a base's matrices are stored for llama.cpp, by the names that ``marlaas.toml`` uses. Standard library only."""

from __future__ import annotations

PRECISIONS = ("f32", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
"""From exact to small."""

WRITTEN = ("f32", "f16")
"""Those that our own writer makes; llama.cpp's quantiser makes the others from float32."""

REPEATABLE = ("f32", "f16", "q8_0")
"""Those whose results are the same to the last bit whatever runs beside; llama.cpp multiplies eight rows and more by
matrices of the other types in another way than fewer."""

BITS = {"f32": 32.0, "f16": 16.0, "q8_0": 8.5, "q6_k": 6.5625, "q5_k_m": 5.7, "q4_k_m": 4.85}
"""Per weight, block scales included; the mixed types as they come out for models of usual shape."""


def nearest(bits: float) -> str:
    """The precision whose weights take about ``bits`` each: what a file of unknown making is taken for."""
    return min(PRECISIONS, key=lambda precision: abs(BITS[precision] - bits))
