"""Sampler endpoints over live workers, and which of them serve which policy, by what tokens cost at each."""
