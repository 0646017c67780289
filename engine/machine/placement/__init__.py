"""Decides workers' devices and memory, and why. Pure."""
