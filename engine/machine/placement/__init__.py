"""Decides which sampler and which trainer run on which device, with how much memory, and explains why. Pure."""
