"""What holds the views together: the poll that feeds them, commands to the engine, keys and looks."""
