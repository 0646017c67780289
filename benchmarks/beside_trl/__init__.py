"""Tasks next to TRL's ``GRPOTrainer``: one, eight, and one at a large vocabulary."""
