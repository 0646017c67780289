"""The trainer's own forward and backward pass for the Qwen and Llama families, without autograd.

Five ideas make it fast: a prompt is computed once for a whole group (``packing``, ``attention``), policies share the
base's products (``linear``), logits are made once, in tiles that stay in the cache (``layer``), only attention is
padded, and float32 products use the processor's fastest library (``engine/base/kernels.py``).
"""
