"""The sampler on torch: ``sampler`` (its settings), ``context`` (memory and the passes), ``blocks`` (the weights).

For bases that fit into a processor's cache, and wherever sampler and trainer should compute alike: it takes the same
tensors and kernels as the trainer.
"""
