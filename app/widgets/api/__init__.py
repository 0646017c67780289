"""The view of the API: its keys, and what is known of one."""
