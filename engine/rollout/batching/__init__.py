"""A sampler over any context that decodes rows: many conversations and adapter versions, repeatable to the last bit.

From the outside in: ``sampler`` (asyncio and the thread), ``answers`` (the way back), ``scheduler`` (what is decoded
when), ``pace`` (how many at once, for how long), ``turn`` (what is sampled), ``memory`` (which conversation has which
sequence, and begins with what others have read: ``prompts``, ``prefixes``), ``slots`` (which sequence ids and rows),
``versions`` (adapters), ``context`` (what llama.cpp or torch has to do).
"""
