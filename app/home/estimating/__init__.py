"""How long tasks will take, before they are submitted."""
