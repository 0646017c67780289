"""Rollouts: conversations become tokens, samplers continue them, episodes return as trajectories.

``Sampler`` is the protocol of every backend: ``llama``, ``torch_sampler`` (both over ``batching``) and ``vllm``. A
sampled token is never tokenised again.
"""
