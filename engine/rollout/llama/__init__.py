"""The sampler on llama.cpp: many conversations and adapter versions in one context, repeatable to the last bit.

From the outside in: ``sampler`` (asyncio and the thread), ``board`` (who is decoded when), ``turn`` (its memory),
``slots`` (which sequence ids and rows), ``versions`` (adapters), ``context`` (the calls to llama.cpp), ``native``.
"""
