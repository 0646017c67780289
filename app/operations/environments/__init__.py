"""Environments as files: templates, definitions, first prompts."""
