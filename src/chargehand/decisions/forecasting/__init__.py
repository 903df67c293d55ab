"""Forecasts of a mission and of a plan, by sampling from the beliefs of the router."""
