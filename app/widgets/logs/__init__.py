"""What the view of logs is made of."""
