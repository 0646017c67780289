"""The schedule: which task may do what now. Owns every decision; does no tensor work and reads no text."""
