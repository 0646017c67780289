"""What the queue view is made of."""
