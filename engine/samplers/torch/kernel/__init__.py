"""Passes in C for small bases: all layers in one call of ``decode.c``."""
