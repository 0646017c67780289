"""Sampler endpoints, and their assignment to policies by token costs."""
