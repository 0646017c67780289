"""What a task file may say: its fields with their ranges, rules between them, sweeps, policies, agents and tenants.

A table of TOML becomes frozen dataclasses, or one error that explains what is wrong, where, and what is allowed.
Nothing here knows a store, a model or a running task. ``losses`` has what each loss's paper sets, so that a task file
can be checked without torch.
"""
