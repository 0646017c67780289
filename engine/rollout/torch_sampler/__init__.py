"""The sampler on torch: rows of all versions in one pass over the base.

``sampler`` (its settings), ``context`` (the passes), ``blocks`` (attention and the base's weights), ``cache`` (keys
and values, adapters, tiles). It uses the trainer's tensors and kernels, for small bases and equal results. For bases
of up to 64 MB ``kernel`` has the same passes in C, if this machine can compile them.
"""
