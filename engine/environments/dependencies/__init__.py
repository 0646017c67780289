"""Libraries of plugins: the declaration, a person's consent, and the Python that has them.

A plugin that declares nothing runs on marlaas's own Python. Any other gets a virtual environment, shared by plugins
with the same declaration. Nothing is installed before a person has seen the list.
"""
