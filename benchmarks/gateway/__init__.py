"""What the gateway costs: clients over HTTP beside callers of the bare sampler."""
