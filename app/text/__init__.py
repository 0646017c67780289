"""Numbers, states, findings and estimates in safe words, for screens and verbs alike. Pure."""
