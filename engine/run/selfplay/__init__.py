"""Who plays for which agent: trained and frozen policies, opponent pools, and the match of each play."""
