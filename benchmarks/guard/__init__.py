"""Counts of what marlaas does on its hot paths, which no processor and no load changes, held against a file."""
