"""The `process` tier's parts, most of which the other tiers share: launcher, layout, session, limits, filter."""
