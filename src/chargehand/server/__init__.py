"""The web server: every use case as a route, a live feed of events, and the dashboard."""
