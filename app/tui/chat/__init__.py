"""Talking with a version: sides, sampling parameters, and the sampler's thread."""
