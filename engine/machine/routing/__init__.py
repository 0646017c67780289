"""Sampler endpoints over live workers, and their assignment to policies by token costs."""
