"""The queue: which task runs, why others wait, commands and retries.

It starts and ends runs (``train``) on the machine's workers. The decision is a pure function of the queue.
"""
