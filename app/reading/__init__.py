"""Reads of a home: what can be asked of one, whoever answers, and how it is opened."""
