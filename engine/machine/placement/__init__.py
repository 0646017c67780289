"""Decides which sampler and which trainer run on which device, with how much memory, and says why. Pure."""
