"""The conformance suite of agents, and stand-ins for the programs of others."""
