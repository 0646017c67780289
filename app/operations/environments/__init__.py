"""Environments as files: templates for new ones, if they are defined, and what they ask first."""
