"""Flash attention in float32: ggml computes it, but llama.cpp has no setting for it.

Where keys and values are kept in float32, llama.cpp's graphs cast them to float16 before flash attention
(``build_attn_mha`` in llama-graph.cpp), although ggml's own kernel takes both as they are
(``ggml_compute_forward_flash_attn_ext`` in ggml-cpu). So we lead each new graph past its casts before it is computed.
Attention without flash is as exact, but reads blocks of 256 tokens of each sequence, however few it holds.
"""

from __future__ import annotations

import ctypes

from .mixing import F32, NOTHING, Ggml, OtherForm, Tensor

KEYS, VALUES = int(Tensor.right.offset), int(Tensor.others.offset)
"""Where an attention's tensor has the addresses of its keys and values: they follow its queries."""


def past_casts(ggml: Ggml, attention: int) -> None:
    """Let the flash attention whose tensor is at this address read keys and values as they are kept, in float32.

    A graph that is used again stays as it was made here. Raises ``OtherForm`` where neither float32 nor a cast from it
    is there.
    """
    for place in (KEYS, VALUES):
        source = ctypes.c_size_t.from_address(attention + place)
        if ctypes.c_int.from_address(source.value).value == F32:
            continue
        cast = Tensor.from_address(source.value)
        if cast.op != ggml.copies or Tensor.from_address(cast.left).type != F32:
            raise OtherForm("llama.cpp computes attention in another form")
        source.value = cast.left
        cast.op = NOTHING
