"""The trainer's own forward and backward pass for the Qwen and Llama families, without autograd.

Five ideas make it fast: a prompt is computed once for all members of a group (``packing``, ``attention``), policies may
share the base's products (``linear``), logits are made once, in tiles that stay in the cache (``head``), nothing is
padded but attention, and float32 products run on the fastest library of the processor (``engine/base/kernels.py``).
"""
