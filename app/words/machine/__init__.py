"""Processors, cards, nodes and the set-up in words. Pure."""
