"""Submission and scheduling of tasks."""
