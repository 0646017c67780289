"""Fair shares of workers, by tenant and task."""
