"""Installed libraries, the cards that they reach, and why one cannot be used."""
