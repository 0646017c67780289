"""Which cards there are, who holds their memory, and which of them a process sees, under which names."""
