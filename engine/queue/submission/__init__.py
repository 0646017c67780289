"""From a task file to the queue: dependencies, start versions, estimates, refusals.

The application calls this before it stores a task, and the scheduler asks it for a task's next state. It reads the
store, bases and adapters; it starts nothing.
"""
