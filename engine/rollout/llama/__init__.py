"""The sampler on llama.cpp: ``sampler`` (its settings), ``context`` (the calls), ``native`` (the library), ``mixing``
(rows of several adapters in one call)."""
