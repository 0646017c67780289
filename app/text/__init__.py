"""Numbers, states, findings and estimates as safe text. Pure."""
