"""What a sampler's process runs: samplers on llama.cpp, torch (both over ``batching``) and vLLM.

``protocol`` has what each of them answers.
"""
