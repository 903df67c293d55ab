"""How one request of a client is admitted, answered and settled."""
