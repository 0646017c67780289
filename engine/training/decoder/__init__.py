"""The trainer's own forward and backward pass for the Qwen and Llama families, without autograd.

Five ideas make it fast: a prompt is computed once for all members of a group (``packing``, ``attention``), the adapter
of a small base is merged into the weights for a step so that only its gradient costs extra (``merged``, ``linear``; of
a large one it stays beside them, ``split``), logits are made once, in tiles that stay in the cache (``head``), nothing
is padded but attention, and float32 products run on the fastest kernels of the processor (``engine/base/kernels.py``).
"""
