"""Clients of the API: their keys by hash, what they have used, and the versions that they are served."""
