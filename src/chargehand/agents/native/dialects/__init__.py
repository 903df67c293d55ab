"""The requests of the native agent to the gateway in each dialect, and the readers of the replies."""
