"""Alerts: readings, notices and the channels that deliver them."""
