"""The conformance suite of agents, and fakes of other vendors' programs."""
