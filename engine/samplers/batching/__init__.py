"""A sampler over any context that decodes rows, deterministic to the last bit.

Outside in: ``sampler``, ``requests``, ``scheduler``, ``turn``, ``memory``, ``context``.
"""
