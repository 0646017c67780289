"""The sampler on torch: rows of all versions in one pass over the base.

``sampler`` (its settings), ``context`` (memory and the passes), ``attention``, ``blocks`` (the base's weights),
``cache`` (the adapters), ``tiles`` (each row under its own). For small bases, and wherever sampler and
trainer should compute alike: it takes the same tensors and kernels as the trainer. For bases of up to 64 MB ``kernel``
has the same passes in C, which take the place of ``context`` where this machine compiles them.
"""
