"""Measurements of marlaas beside what else there is; ``make bench`` runs them and writes ``BENCHMARKS.md``."""
