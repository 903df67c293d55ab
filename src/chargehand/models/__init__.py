"""The model gateway: the endpoint that every agent talks through, and the upstreams that answer behind it."""
