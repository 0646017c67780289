"""Reads of the store, one subject a file: rows are frozen dataclasses. Standard library only."""
