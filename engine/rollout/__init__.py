"""Stage 1, rollout: token ids in, sampled token ids with log-probabilities out."""
