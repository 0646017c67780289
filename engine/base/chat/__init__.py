"""The chat template of a base, from anywhere: compiled and tried in a bounded child, rendered with bounds on time and size."""
