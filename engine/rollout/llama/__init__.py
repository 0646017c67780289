"""The sampler on llama.cpp: many conversations and adapter versions in one context, repeatable to the last bit.

From the outside in: ``sampler`` (asyncio and the thread), ``answers`` (the way back), ``board`` (who is decoded when),
``pace`` (how many at once, for how long), ``burst`` (the inner loop), ``turn`` and ``prompts`` (memory), ``slots``
(which sequence ids and rows), ``versions`` (adapters), ``context`` (the calls to llama.cpp), ``native``.
"""
