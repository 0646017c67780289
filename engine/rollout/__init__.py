"""Rollouts: conversations become tokens, samplers continue them, episodes return as trajectories.

``Sampler`` is the protocol of every backend: ``llama``, ``torch_sampler`` (both over ``batching``) and ``vllm``. A
sampled token is never tokenised again.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
