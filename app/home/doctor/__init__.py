"""What ``marlaas doctor`` looks at: the machine, its devices, and where workers would run."""
