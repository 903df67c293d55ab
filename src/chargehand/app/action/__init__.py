"""Carries out the actions of other agents."""
