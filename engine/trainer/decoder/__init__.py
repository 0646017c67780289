"""The trainer's own forward and backward pass for the Qwen and Llama families, without autograd.

It is fast because a prompt is computed once for a whole group (``packing``), policies share the base's products
(``linear``), and logits are made once, in tiles that stay in the cache (``layer``).
"""
