"""Versions of tenants, and the base, for clients with a key: names, loading on demand, sampling, limits."""
