"""What several benchmarks run on: many tasks through the real program, cores, counts of what was used."""
