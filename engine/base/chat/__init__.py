"""The chat template of a base, from anywhere: tried in a bounded child, rendered with bounds on time and size."""
