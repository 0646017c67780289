"""Starts and ends runs (``train``) on the machine's workers."""
