"""The dialogs: each is asked on top of a view and gives one answer."""
