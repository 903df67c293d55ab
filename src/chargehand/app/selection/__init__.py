"""Selection of role, agent and model for a mission."""
