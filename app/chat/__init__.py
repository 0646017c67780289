"""Talking with a version: whom with, in which manner, and the thread that the sampler lives in."""
