"""How a mission with a plan goes on: what may start, what is merged, what is tried next."""
