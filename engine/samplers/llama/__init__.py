"""The sampler on llama.cpp."""
