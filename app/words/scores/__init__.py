"""Held-out scores in words and tables, and the difference between two of them. Pure."""
