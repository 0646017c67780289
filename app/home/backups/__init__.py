"""A home as one file, and again a home: what the file is, how it is written, and how it is restored."""
