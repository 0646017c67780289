"""What ``marlaas doctor`` looks at: the machine, its devices, and where work would go."""
