"""The sampler on vLLM: one stream of requests over many adapters, in this process.

``sampler`` (the worker class), ``scheduler`` (turns and scores in progress), ``adapters`` (folders, loaded and freed),
``engine`` (the only file that imports vllm), ``settings`` (what it is started with), ``installed`` (whether it can be).
"""
