"""Libraries of plugins: the declaration, a person's consent, and the Python that has them.

A plugin without a declaration runs on marlaas's own Python; equal declarations share a virtual environment. Nothing is
installed before a person has seen the list.
"""
