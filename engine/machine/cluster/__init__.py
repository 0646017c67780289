"""Several machines, joined by Ray. Only processes that speak with Ray import it."""
