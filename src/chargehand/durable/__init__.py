"""State that outlives a process: liveness, orders to workers, queue places, and the engine of missions."""
