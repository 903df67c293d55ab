"""Alerts: what is read, what is told, and by which ways."""
