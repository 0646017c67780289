"""The simulator: what it predicts beside what was measured, and what the engine's own code takes at a large scale."""
