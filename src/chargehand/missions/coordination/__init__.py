"""Control of a mission with a plan: starting tasks, merging results, choosing what to try next."""
