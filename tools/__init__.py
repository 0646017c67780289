"""What the repository needs next to the program: set-up and the making of the shipped base model."""
