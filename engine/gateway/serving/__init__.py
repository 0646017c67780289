"""Tenants' versions, and the base, for clients with a key."""
