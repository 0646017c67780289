"""The chat template of a base, which is untrusted: tried in a child process, rendered with bounds on time and size."""
