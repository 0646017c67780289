"""Talking with a version: whom with, with which sampling parameters, and the thread in which the sampler runs."""
