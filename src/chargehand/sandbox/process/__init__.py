"""The `process` tier's parts, mostly shared with the other tiers: launcher, layout, session, limits, filter."""
