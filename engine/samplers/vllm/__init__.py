"""The sampler on vLLM, in this process."""
