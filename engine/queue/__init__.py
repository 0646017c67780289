"""From a task file to a running task: submission and scheduling."""
