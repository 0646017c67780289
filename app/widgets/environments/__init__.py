"""What the environments view is made of."""
