"""The terminal application: screens, their widgets, and what stands in them."""
