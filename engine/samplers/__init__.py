"""Samplers on llama.cpp, torch (both over ``batching``) and vLLM; ``protocol`` is their interface."""
