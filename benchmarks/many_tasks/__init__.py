"""Many tasks in one engine: at once next to one after another, shares of tenants, staleness."""
