"""Who goes next where many want the same device: weighted shares of tenants, even shares of a tenant's tasks."""
