"""One task's run, from admission of groups to evaluation."""
