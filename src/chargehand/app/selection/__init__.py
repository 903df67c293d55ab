"""Which role, agent and model work on a mission."""
