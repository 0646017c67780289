"""What the repository needs beside the program: set-up and the making of the shipped base model."""
