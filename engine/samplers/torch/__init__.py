"""The sampler on torch: rows of all versions in one pass over the base.

``sampler`` (its settings), ``context`` (the passes), ``blocks`` (attention, weights), ``cache`` (keys, values,
adapters). It uses the trainer's kernels. ``kernel`` has the passes in C for bases of up to 64 MB.
"""
