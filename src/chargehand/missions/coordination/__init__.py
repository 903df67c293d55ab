"""Control of a mission with a plan: which tasks start, which results are merged, what is tried next."""
