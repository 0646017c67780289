"""The contents of a task file.

A TOML table becomes frozen dataclasses, or one error with all mistakes. Knows no store, model or running task, and
needs no torch.
"""
