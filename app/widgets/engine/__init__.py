"""What the engine view is made of: panes of lines, one for each question that a person asks of a machine."""
