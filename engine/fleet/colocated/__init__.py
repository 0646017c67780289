"""The worker that samples with vLLM and trains on one device, and how the two take turns on it."""
