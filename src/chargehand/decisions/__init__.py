"""Decides which agent, model and strategy do a piece of work; pure functions of recorded facts."""
