"""The API: HTTP for clients and for programs of episodes, in a process (``http``) that asks the engine for answers.

The rest is the engine's side: that process, its callers, and the versions that clients use.
"""
