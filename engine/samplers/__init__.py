"""What a sampler's process runs: the protocol, batching, and samplers on torch, llama.cpp and vLLM."""
