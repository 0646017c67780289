"""Many tasks in one engine: at once beside one after another, shares of tenants, staleness."""
