"""Reads of the store. Standard library only."""
