"""A sampler over any context that decodes rows: many conversations and adapter versions, deterministic to the last
bit.

From the outside in: ``sampler`` (asyncio and the thread), ``requests`` (answers, pace, versions, scores),
``scheduler`` (what is decoded when), ``turn`` (what is sampled), ``memory`` (sequences and shared prompts),
``context`` (the interface of llama.cpp and torch, sequence ids, prefixes).
"""
