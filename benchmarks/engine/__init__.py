"""The engine's own share: processor time, messages, environments, start-up."""
