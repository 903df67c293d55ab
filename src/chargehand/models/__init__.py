"""The model endpoint that every agent talks through, and who answers behind it."""
