"""Questions to the person at the keyboard: each is asked on top of a view and gives one answer."""
