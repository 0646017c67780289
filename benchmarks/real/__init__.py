"""Training a real model, SmolLM2-135M-Instruct, next to TRL and at defaults; ``python -m benchmarks.real PART``."""
