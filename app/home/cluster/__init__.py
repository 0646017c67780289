"""This machine as a node of a cluster: joining, leaving, and what is known of the other nodes."""
