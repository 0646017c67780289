"""Environments as files: templates for new ones, where they are defined, and what they ask first."""
