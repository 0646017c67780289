"""Versions of tenants, and the base, for clients that have a key: names, loading on demand, sampling, limits."""
