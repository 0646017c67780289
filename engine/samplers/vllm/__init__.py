"""The sampler on vLLM: one stream of requests over many adapters, in this process."""
