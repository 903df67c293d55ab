"""Builds the parts of a session: tiers, network, gateways, limits by the size of the machine."""
