"""The sampler on vLLM: one stream of requests over many adapters, in this process.

``sampler`` (the worker class), ``scheduler`` (turns and scores in progress), ``engine`` (settings, adapters, and the
only import of vllm).
"""
