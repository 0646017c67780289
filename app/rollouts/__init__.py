"""Conversations as text, as shaded tokens and as records. Knows no widget."""
