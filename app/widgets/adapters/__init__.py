"""What the view of adapters and the chat pane are made of."""
