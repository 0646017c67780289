"""A sampler over any context that decodes rows, deterministic to the last bit.

From the outside in: ``sampler`` (the thread), ``requests`` (answers, versions), ``scheduler``, ``turn``, ``memory``
(shared prompts), ``context`` (the interface of llama.cpp and torch).
"""
