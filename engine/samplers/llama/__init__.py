"""The sampler on llama.cpp: ``model`` (its file and settings), ``context`` (the calls), ``native`` (the library),
``mixing`` (rows of several adapters in one call).
"""
